"""A CPU's kernels, compiled for one model's shapes when it is loaded, as databases compile their queries.

Open `forward.py` first: all layers of a decoder as one function, which several threads run together. What it calls are
the matrix products, paged attention (`attention.py`; of prompts `attention_tile.py`; `scores.py` is in both), and what
a layer computes between them. `cache.py` reads and writes pages, and `layer_attention.py` is attention alone, for
models that keep transformers' modules.

`panel_head.py` comes from hidden states to tokens, over all ids or over those allowed. `head_code.py` is
the code: product, mask, noise and the best so far, a block of ids at a time while
its logits are in a core's cache. A masked id adds exactly nothing to the sum of its block, so dense and sparse heads
draw the same token with the same bits of its log-probability. Where nobody reads log-probabilities, a copy of the
weights in eight bits leaves only the panels that can win (`head_screen.py`). `sample.py` draws from logits, with the
noise of all draws.

`product.py` is a linear layer as a function of tensors, over weights that stay as a checkpoint holds them: floats, or
four and eight bits. `panels.py` lays weights out in the order in which they are read, `panel_file.py` keeps them so in
a file, `panel_code.py` reads them, and `matmul_code.py` is the code, compiled once for each form of panels and each
width of vectors: over neighbouring panels, or over listed ones.

`recurrence.py` takes the tokens of a sequence one after the other, with a state in between, and `gates.py` is the norm
after it: functions of their own, called between two parts of a forward. `delta.py` is all that comes between two
projections where a layer has the gated delta rule; the forward calls it itself.

`kernel_code.py` is the small vocabulary over LLVM's builder that all kernels are written in. `compile.py` compiles them
for the machine's own vectors, stores the result for the next process, and has the threads that run it.

A row has the same bits in any batch: a result depends on its own row, position and context alone, so nothing is
grouped, padded or gathered. No kernel may sum in an order that depends on the number of rows, on their place in a tile,
or on who computes which part: threads share rows, outputs and queries out, and never a sum. All arithmetic is in
float32, whatever types weights and pages are stored in; but who asks for bfloat16 has the inputs of its products
rounded to it where the processor multiplies such pairs (AVX512-BF16), which halves the time of a prompt's products.
What kernels cannot be compiled for raises LookupError, and torch does it.
"""
