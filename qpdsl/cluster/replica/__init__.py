"""One replica: a session of its own that is given rows, and sends what came of each.

Open `messages.py` first: what a replica gets before its first row (`ReplicaSetup`), and what is sent from then on, in
both directions. `replica.py` runs the rows by the runner of `qpdsl/runs`. `replica_fingerprint.py` is what the bits of
its results depend on, and `event_thinning.py` picks what of its events is worth sending. Everything here can be pickled
or is loaded in the replica itself; nothing knows how messages travel.
"""
