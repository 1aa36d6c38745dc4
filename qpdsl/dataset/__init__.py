"""A program over the rows of a data set: read, run side by side, recorded.

Open `job.py` first: `run_rows` runs the rows that `rows.py` read, started as `admission.py` says, and gives the outcome
of each (`row_outcome.py`) as it ends. The command line appends every outcome to a journal (`journal.py`) and syncs it
before the row counts as done; the ordered output is written at the end, whole or not at all. A run is resumed only if
its fingerprint (`fingerprint.py`) agrees: program, arguments, model files, seed, input, device, types and version. A
line of the journal that was damaged is not believed, and its row runs again. Fields of the input that mean nothing are
said, not passed over. The keys of a record and their order are part of the format. `summary.py` says what a run came
to, `token_waits.py` how long its samples waited for tokens, `server_totals.py` what it took of servers, and
`lossy_figures.py` what filters and early exits did. Nothing here prints, but for the progress bar on stderr.
"""
