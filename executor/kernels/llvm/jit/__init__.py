"""LLVM code for the machine that it runs on: written, compiled, and run in several threads.

Open `builder.py` first: the small vocabulary over LLVM's builder that all kernels are written in. `compile.py` compiles
what it made for the machine's own vectors and makes functions of addresses and numbers; `object_cache.py` keeps the
result for the next process. `team.py` keeps the threads.
"""
