"""A CPU's kernels, compiled for one model's shapes when it is loaded, as databases compile their queries.

Open `forward.py` first: all layers of a decoder as one function, which several threads run together. What it calls are
the matrix products (`matmul/`), paged attention (`attention.py`), and what a layer computes between them (`layer.py`).
`cache.py` reads and writes pages, and `layer_attention.py` is attention alone, for models that keep transformers'
modules. `panel_head.py` comes from hidden states to tokens, over all ids or over those allowed: `head_plan.py` says
over which panels of ids, `head_code.py` is the code, and `gumbel.py` its noise. `sample.py` draws from logits. `jit/`
has what the kernels are written, compiled and run with.

A row has the same bits in any batch: a result depends on its own row, position and context alone, so nothing is
grouped, padded or gathered. No kernel may sum in an order that depends on the number of rows, or on who computes which
part: threads share rows, outputs and queries out, and never a sum. All arithmetic is in float32, whatever types weights
and pages are stored in. What kernels cannot be compiled for raises LookupError, and torch does it.
"""
