"""`qpdsl profile`: what a device does, what a model takes, and how a program's batches are best cut.

`profile.py` is the command, and measures the device. Two of its options print estimates and measure nothing:
`--roofline` (`roofline_options.py`) what a model takes on named hardware, `--surface` (`surface_options.py`) the
throughput of a program's models by sequences and tokens of a step.
"""
