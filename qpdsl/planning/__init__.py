"""Planning with what was measured: statistics of earlier runs and profiles of devices.

Open `planning.py` first: it makes the plan of a program for the command line, by the rules and then, where the target
(`target.py`) was measured, by cost. The Python face takes the same choice. `analysis.py` measures a run beside its
estimate and adds it to the statistics, `profile.py` measures a device. Both are kept in the user's cache folder
(`user_cache.py`), where a file is replaced whole, one that is damaged counts as absent, and statistics are changed
under a lock. Planning must work without any of these files, and without torch: only `analysis.py` and `profile.py`
load it.
"""
