"""Compute kernels over paged KV: attention, stores, draws.

Open `paged_attention.py` first: paged attention as a layer calls it, by Triton kernels on a GPU (`triton/`) or their
torch twins (`plain/`). `packed.py` puts a step's numbers into one tensor, so that one copy takes them to the device and
a CUDA graph can be replayed. On a CPU the engine uses `llvm/`, or torch. All of them read the tensors of `data/`.
Kernels know neither sequences nor requests, and every one has a plain twin that it is compared with.
"""
