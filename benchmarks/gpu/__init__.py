"""Everything that needs a GPU, and what can be known of it without one.

Open `run.py` first: its parts, in order. `bench.py` is the device and its clock, `record.py` keeps figures as they
come, `tables.py` shows them. Parts: `product.py`, `faults.py` with `engine_checks.py`, `engine.py`, `step_profile.py`,
`kernel_checks.py`, `linears.py`, `kernels.py`. `estimate/` derives what steps should take and judges what was measured;
`compiled/` counts the machine code of the kernels; `host_time.py` is the host's part of a step. These run anywhere.
"""
