"""Everything that needs a GPU, and what can be known of it without one.

Open `run.py` first: its parts, in order. `bench.py` is the device and its clock, `record.py` keeps figures as they
come, `tables.py` shows them. Parts: `kernel_checks.py`, `faults.py` with `engine_checks.py`, `step_profile.py`,
`kernels.py`, `linears.py`, `engine.py`, `heads.py`. `estimate/` derives what steps should take and judges what was
measured; `compiled/` counts the machine code of the kernels. These two run anywhere.
"""
