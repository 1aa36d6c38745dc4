"""Runs and devices, measured; the planner's estimates are made of these figures.

`run_meter.py` is a reader of the event stream that adds up one run, problem by problem, as each ends; EXPLAIN ANALYZE
and the statistics are both made of its sums. `device.py` measures a device and the models on it with the loads of
`loads.py`, through the engine as programs use it. What the figures mean is said where they are kept:
`planner/cost/device.py` and `planner/cost/run_figures.py`. Nothing here keeps a file.
"""
