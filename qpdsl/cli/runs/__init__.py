"""The kinds of run that a command line starts: one answer, the rows of a data set, a sweep, a run for its analysis.

Open `single_run.py` and `rows_run.py` first: one answer, and what runs of many rows share. A run over a data set
(`data_set_run.py`) is a sweep of one cell, with its results in order; `sweep_run.py` is a sweep with its table, and
`budget_warm_up.py` a small one before a budgeted run: its first rows, run by every strategy of the program.
`whatif_run.py` asks a saved run: its rows again, with the changes that `whatif_options.py` and `whatif_cells.py` make.

`run_files.py` has the files of a run checked before it starts, and `run_options.py` opens its session. No file is
emptied or begun before the models are loaded. `analysis_run.py` measures a run as it goes and keeps its statistics.
`repeated_run.py` makes a saved run ready to run again, from its record, for `verify_run.py`,
`diverging_runs.py` and `replayed_rows.py`, which makes a trace of rows that were run without one.
`run_events.py` tells a run's events to whoever watches the process (`cli/watched.py`).
`dashboard.py` starts a run as a second process and shows it, so that neither waits for the other. `run_tables.py` shows
saved runs. Answers go to stdout, everything else to stderr.
"""
