"""Saved runs: one SQLite file each, in which a row is committed before it counts as done.

Open `recording.py` first: a run that this process writes. `run_file.py` is its file, `run_record.py` what is in it, and
`run_folder.py` finds it. `fingerprint.py` is what results depend on: runs with the same one share rows. `continuing.py`
finds the run to resume, and rows to take over. `measured.py` has what was measured of operators.
"""
