"""Planning with what was measured: statistics of earlier runs and profiles of devices.

Open `planning.py` first: it makes the plan of a program for the command line, by the rules and then, where the target
(`target.py`) was measured, by cost. The Python face takes the same choice. `routed.py` makes a plan that leaves choices
to a router. `analysis.py` measures a run beside its estimate and adds it to the statistics, `profile.py` measures a
device. Both are kept in the user's cache folder (`user_cache.py`), with what routers learned (`router_memory.py`);
there a file is replaced whole, one that is damaged counts as absent, and statistics are changed under a lock.
`remote_models.py` tells the planner what was found out about servers. `surface.py` estimates a program's batch surface,
`described_model.py` reads the numbers of a model that is not loaded, and `hardware_here.py` those of this machine.
Planning must work without any of these files, and without torch: only `analysis.py` and `profile.py` load it, and
`described_model.py` to count a model.
"""
