"""Which sequence owns which page of KV.

Open `kv_cache_manager.py` first: it gives sequences their pages. A page holds 16 tokens. A request for several samples
is prefilled once and then forked: the samples share all pages, and the first to write to the shared last page copies
it. A finished sequence leaves its pages to the prefix tree, the last partial page included, so a later request that
begins with the same tokens continues there, within a page too; nothing has to be kept or freed by the caller.

All models' KV lies in one buffer (`Arena` in `kv_cache.py`), cut into slabs that a model's `PagePool` leases as it
needs them and gives back as soon as no page in one is held. So memory moves between a generator and its verifier as
they need it, up to the share that each may take (`SlabShare`). A page is one row for each layer, one after the other,
and its number is that of its first row; where layers keep different shapes, it is one row. A slab is zeroed where its
last owner had another type. `budget.py` says how large the buffer may be, and what else the process holds.

A model that needs pages takes a free one of its own, then a free slab, then what is worth least (`prefix_tree.py`):
leaves of its own prefix tree, or a slab of another model that holds only cached prefixes. Only then is a sequence
preempted: of all models, the one that ranks last (see `Rank` in `sequence.py`). It is computed again later, and its
tokens do not change. The one that ranks first can always continue, so no two models wait for each other.

Where layers keep states besides, each sequence has a block of them, from slabs of their own, and the prefix tree keeps
others for those who go on from there (`state_blocks.py`); they are evicted by their own worth.

The residuals of tokens whose last layers are to come wait in slabs of their own (`residuals.py`), which go back before
any sequence is preempted.

Everything here is bookkeeping of page numbers; only `kv_cache.py` and `residuals.py` hold tensors.
`check_integrity()` balances every account, and a hypothesis state machine drives it over two models on a few slabs.
"""
