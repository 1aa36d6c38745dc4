"""A GPU's kernels, in Triton.

Open `step_attention.py` first: attention over pages in one kernel for the decoding sequences and the chunks of a step.
`cascade.py` adds a kernel that reads shared prefixes once, and `merge.py` joins the parts of a split context.
`tuning.py` chooses sizes of blocks and parts on the host, and finds on the device which of them a program takes.
`online_softmax.py` is what is done with a block of keys, and how parts are joined; `stored_numbers.py` writes keys and
values into pages, and makes numbers of what these hold. `layers.py` is what lies between the matrix products of a
layer.

`head_kernels.py` draws tokens from hidden states, over all ids or over those of a list; `sample.py` draws where the
logits are, from the ids that `cut.py` finds filters to leave. All three sum parts of the vocabulary up in the way of
`vocabulary_parts.py`.

`common.py` has what several kernels share. Every kernel has a torch twin
(`plain/`), with which the tests compare it under Triton's interpreter. Nothing here may wait for the device, and
numbers that vary from step to step are arguments that Triton does not specialize on.
"""
