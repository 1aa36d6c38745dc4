"""Attention over pages: kernels and their launchers.

Open `step_attention.py` first: one kernel for the decoding sequences and the chunks of a step. `launches.py`
launches it for one kind or both; `cascade.py` adds a kernel that reads shared prefixes once.
`merge.py` joins the parts of a split context. `tuning.py` chooses sizes of blocks and parts on the host, and
`partition.py` says on the device which of them a program takes. `online_softmax.py` is what is done with a block of
keys, and how parts are joined; `stored_numbers.py` makes numbers of what pages hold, and `store.py` writes them there.
"""
