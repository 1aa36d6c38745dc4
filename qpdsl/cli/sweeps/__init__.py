"""`qpdsl eval`: a grid of programs and values over a data set, from its options to its table.

Open `sweep_run.py` first: it runs what is left of a sweep and prints the table. `sweep_options.py` has the options and
makes of them the runs to do, `sweep_files.py` checks the files that are read and written, and `replica_cells.py` has
rows run on a cluster. What a sweep is, in which order its rows run and what its figures mean is in `qpdsl/evaluation`.

`budget_warm_up.py` is a small sweep before a budgeted run: the first rows, run by every way of the program.
"""
