"""The tensors that kernels read, the same for kernels of any device.

Open `kv_rows.py` first: how keys and values lie in memory, in the model's type or in eight bits; `int4_groups.py` says
how they lie in four. `paged_batch.py` is what a step holds about its sequences: page tables, contexts, slots and shared
prefixes. `shared_prefixes.py` finds those prefixes; `token_draws.py` is a head's weights and what is drawn with them;
`layer_constants.py` is what a layer has beside the weights of its products. Nothing here computes attention, and
nothing here knows the engine.
"""
