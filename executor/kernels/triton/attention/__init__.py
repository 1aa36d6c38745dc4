"""Attention over pages: kernels and their launchers.

Open `tiles.py` first: one kernel for the decoding sequences and the chunks of a step. `decode.py`, `prefill.py` and
`mixed.py` launch it for one kind or both; `cascade.py` adds a kernel that reads shared prefixes once. `merge.py` joins
the parts of a split context; `store.py` writes keys and values into pages; `tuning.py` chooses sizes of blocks and
parts on the host. The block of online softmax that `tiles.py` and `cascade.py` share, and how parts are joined, is in
`../common.py`.
"""
