"""Rows over many replicas: two against one, measured, and a thousand, simulated from recorded times.

`job.py` has the job that both run. `replicas.py` measures real replicas; `simulation.py` runs the dispatcher of
`qpdsl/cluster` itself, with simulated replicas in simulated time, and says what gives way first. `driver_costs.py`
times what the driver does for a row outside the dispatcher: messages, the run's file, memory.
"""
