"""One replica: a session of its own that is given rows, and tells what came of each.

Open `replica_setup.py` first: what a replica is told before its first row. `messages.py` has what is said from then on,
in both directions, and `replica.py` runs the rows as `qpdsl/dataset/job.py` does. `replica_fingerprint.py` says what
the bits of its results depend on, and `event_thinning.py` what of its events is worth sending. Everything here can be
pickled or is loaded in the replica itself; nothing knows how messages travel.
"""
