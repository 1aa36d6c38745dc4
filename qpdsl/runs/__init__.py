"""Rows of data run by programs: read, run, graded, saved and compared.

    data/ ──► runner ──► store/ ──► summary, evaluation, compare/
              graders/

Open `runner.py` first: one loop that starts rows as the plans say, in this process or in a replica of a cluster.
`sweep.py` runs all rows of one or many cells, each a saved run: `qpdsl run --input` is a sweep of one cell. `job.py` is
what is run for a row, `row_outcome.py` what came of it.

`data/` reads rows from files, `graders/` says whether answers are right, `store/` saves runs. `grid.py` and `cells.py`
make the cells of a sweep, `evaluation.py` and `evaluation_text.py` its table. `summary.py` is the summary of one run,
with the parts of `usage.py` and `answer_metrics.py`, and `inspect_log.py` a run as a log of inspect_ai. `compare/` sets
saved runs side by side. `verification.py` holds rows of one that run again against what was saved, and `whatif.py`
answers from it what other programs would have given; each has its `_text.py`. `estimators.py`, `statistics.py`,
`plots.py` and `record_file.py`, the formats in which records are written, know nothing of runs.

What must hold: `Outcome.correct` and `Outcome.failure` alone say whether a row is right, wrong or failed. A row is
committed and synced before it counts as done; the ordered output is written at the end, whole or not at all; no result
depends on when rows ended, or on who ran them. Keys of records and their order are part of the format.
"""
