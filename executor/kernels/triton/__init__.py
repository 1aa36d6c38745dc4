"""A GPU's kernels, in Triton.

Open `decode.py` first. `common.py` has the block of online softmax that `decode.py`, `cascade.py` and `prefill.py`
share; `merge.py` joins the parts of a split context; `store.py` writes keys and values into pages; `tuning.py` chooses
their block sizes and split counts on the host. `sample.py` draws tokens where the logits are, `dense_head.py` and
`sparse_head.py` from hidden states; all three sum parts of the vocabulary up in the way of `vocabulary_parts.py`.
`lin_ucb_kernels.py` chooses arms. Every kernel has a torch twin (`plain/`), with which the tests compare it under
Triton's interpreter. Nothing here may wait for the device, and numbers that vary from step to step are arguments that
Triton does not specialize on.
"""
