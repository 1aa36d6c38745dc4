"""A CPU's kernels, compiled for one model's shapes when it is loaded, as databases compile their queries.

Open `layer.py` first: the calls of a decoder layer between its matrix products. `attention.py` and `sample.py` are
paged attention and the draw, `cache.py` reads and writes pages, `builder.py` is the small vocabulary over LLVM's
builder that all are written in, and `compile.py` compiles them for the machine's own vectors, in about 0.2 s.

A query's result depends on its own position and context alone, so nothing is grouped, padded or gathered, and a sample
has the same bits in any batch; no kernel here may sum in an order that depends on the number of rows. The kernels serve
float32 models of the Llama family. What they cannot be compiled for raises LookupError and runs in torch (`plain/`).
"""
