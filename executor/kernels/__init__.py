"""Compute kernels over paged KV and over the weights of linear layers.

Open `paged_attention.py` first: paged attention as a layer calls it, by Triton kernels on a GPU (`triton/`) or their
torch twins (`plain/`); `flash_prefill.py` is FlashAttention-3 where that is installed. On a CPU the engine uses
`llvm/`, or torch. `token_heads.py` draws tokens from hidden states in the same way, without logits of all ids in
memory. `layers.py` is what a layer computes between its matrix products, each in one launch. `device_router.py` chooses
arms by LinUCB where a step runs. `packed.py` puts a step's numbers into one tensor, so that one copy takes them to the
device and a CUDA graph can be replayed. `linear.py` is a linear layer for a CPU whose weights stay as a checkpoint
holds them, laid out for the compiled product; `stored_linear.py` is what such a layer is made from, and computes by
torch. All of them read the tensors of `data/`. Kernels know neither sequences nor requests, and every one has a plain
twin, or torch's own function, that it is compared with.
"""
