"""Compute kernels over paged KV and over the weights of linear layers.

Open `paged_attention.py` first: paged attention as a layer calls it, by Triton kernels on a GPU (`triton/`) or their
torch twins (`plain/`). On a CPU the engine uses `llvm/`, or torch. `layers.py` is, in the same way, what a layer
computes between its matrix products, and how tokens are drawn from hidden states without logits of all ids in memory.
`recurrences.py` is what goes through a sequence token by token with a state in between, compiled for a CPU or by torch.
`packed.py` puts a step's numbers into one tensor, so that one copy takes them to the device and a CUDA graph can be
replayed. `linear.py` has linear layers whose weights stay as a checkpoint holds them: laid out for the compiled product
of a CPU, and as loaded, which torch computes. All of them read the tensors of `data/`. Kernels know neither sequences
nor requests, and every one has a plain twin, or torch's own function, that it is compared with.
"""
