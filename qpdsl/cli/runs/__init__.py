"""The kinds of run that a command line starts: one answer, the rows of a data set, a run for its analysis.

Open `single_run.py` and `data_set_run.py` first. `run_files.py` has the files of a run checked before it starts, and
`run_options.py` opens its session, while `load_notes.py` says what it loads. `server_check.py` asks the servers of
models first, and refuses what they cannot do. No file is emptied or begun before the models are loaded. Where the
options name a cluster, `replica_rows.py` has replicas run the rows. `analysis_run.py` measures a run as it goes and
keeps its statistics, `route_record.py` writes down what routers could learn from. `run_events.py` gives each run an
event stream, a socket that `qpdsl top` attaches to and, if wanted, a trace. `dashboard.py` starts a run as a second
process and shows it, so that neither waits for the other. Answers go to stdout, everything else to stderr.
"""
