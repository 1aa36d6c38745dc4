"""The chunks of a step, laid out as the input of one forward.

There are two layouts. `grouped_batch.py` is for attention in torch, on a CPU that has no compiled kernels, or none for
a model's heads: groups of sequences of like length attend in one call each. `kernel_batch.py` is for attention by
kernels: the host writes all numbers of a step (tokens, positions, slots, page tables, shared prefixes) into one int32
array, and a `KernelBatch` is its views on the device. `staging.py` brings arrays to the device through pinned memory,
in one copy (a `Parcel` collects what several parts of a step send), and results back; nobody waits for the former.

With kernels, sequences with one token come first. A prefix that several of them share is read once, where that saves
more than it costs. A step that may be captured as a CUDA graph has its sizes rounded up to few different ones
(`GraphAssembler` counts them): the rows that decode, the rows of chunks, the numbers of sequences and of rows that are
read, the page tables' width and the bounds of shared prefixes. Padding rows belong to sequences without a context: the
kernels give zero for them, and what they store goes to the scratch page. Steps of many tokens have their own sizes.

Each token of a tree is a sequence of its own in both layouts, which reads the tokens of its path wherever they lie, in
their order. So it is computed as if they were a sequence's next tokens, and has their bits.

Open `grouped_batch.py` first. Nothing here may run a model.
"""
