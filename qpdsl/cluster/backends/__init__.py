"""How replicas are started and spoken to.

Open `backend.py` first: the protocol of a backend, and of the link to one replica that it gives. `process_backend.py`
starts processes of this machine, each of which runs `replica_process.py`; `ray_backend.py` starts Ray actors, here or
on a cluster. Messages of a link come in the order in which they were sent. A link that is lost says so once, and
nothing of the replica is heard afterwards. Replicas end when whoever started them does.
"""
