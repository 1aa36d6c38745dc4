"""One replica: a session of its own that is given work, and sends what came of it.

Open `messages.py` first: what a replica gets before its first row (`ReplicaSetup`), and what is sent from then on, in
both directions. `replica.py` loads the models and has the work done; `row_work.py` runs rows by the runner of
`qpdsl/runs`. `replica_fingerprint.py` is what the bits of its results depend on, and `event_thinning.py` picks what of
its events is worth sending. Everything here can be pickled or is loaded in the replica itself; nothing knows how
messages travel.
"""
