"""Runs and devices, measured; the planner's estimates are made of these figures.

`run_meter.py` is a reader of the event stream that adds up one run, problem by problem, as each ends; EXPLAIN ANALYZE
and the statistics are both made of its sums. `MemoryMeter` parts the memory that the run held. `outline.py` counts
a model by its configuration alone. `device.py` measures a device and the models on it with the loads of `loads.py`,
through the engine as programs use it, and the share of a head from which on a list of ids is the
slower way. What the figures mean is said where they are kept: `planner/cost/device.py`,
`planner/cost/run_figures.py` and `planner/capacity/architecture.py`. Nothing here keeps a file.
"""
