"""Runs that are kept: what was run, on what, and what came of every row.

Open `run_record.py` first: what is known of a run, which `description.py` writes down, and of its rows. `run_file.py`
is the file of one run, an SQLite database with one writer (`run_lock.py`) and any number of readers; `run_folder.py`
the folder of all of them, in which runs are listed and found. `fingerprint.py` says what the results of a run depend on
besides its rows, `model_digests.py` what tells models apart. `recording.py` has the rows of a run that are kept and
those that are left: whoever runs rows adds each outcome there. `resumption.py` finds the run to go on with, `reuse.py`
takes rows from runs with the same fingerprint, and `measured.py` keeps what operators came to.

A row that `add` returned from is kept, whatever happens to the process, and is there once. One that was damaged is not
believed. Nothing here prints or runs a program.
"""
