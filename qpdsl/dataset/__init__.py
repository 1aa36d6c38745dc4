"""A program over the rows of a data set: run side by side, and told.

Open `job.py` first: `run_rows` runs rows, started as `admission.py` says, and gives the outcome of each
(`row_outcome.py`) as it ends. `row_runner.py` says what else may run rows. Whoever runs them keeps each outcome before
the row counts as done (`qpdsl/run_store/`); the ordered output is written at the end, whole or not at all. The keys of
a record and their order are part of the format. `summary.py` says what a run came to, `token_waits.py` how long its
samples waited for tokens, `server_totals.py` what it took of servers, and `lossy_figures.py` what filters and early
exits did. Nothing here prints, but for the progress bar on stderr.
"""
