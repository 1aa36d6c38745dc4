"""Attention over pages: kernels and their launchers.

Open `decode.py` first. `merge.py` joins the parts of a split context; `store.py` writes keys and values into pages;
`tuning.py` chooses block sizes and split counts on the host. The block of online softmax that `decode.py`, `cascade.py`
and `prefill.py` share is in `../common.py`.
"""
