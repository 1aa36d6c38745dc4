"""A GPU's kernels, in Triton.

`attention/` reads and writes pages of keys and values, `layers/` is what lies between the matrix products of a layer,
`heads/` draws tokens; open `attention/step_attention.py` first. `common.py` has what several of them share, and
`lin_ucb_kernels.py` chooses arms. Every kernel has a torch twin (`plain/`), with which the tests compare it under
Triton's interpreter. Nothing here may wait for the device, and numbers that vary from step to step are arguments that
Triton does not specialize on.
"""
