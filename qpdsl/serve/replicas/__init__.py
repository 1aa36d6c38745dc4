"""Requests over several replicas behind one door, which answer as one process does.

```
 client ─► ServerApp ─► ReplicatedModel.read ─► ReplicaPool ══ AskModel, DropRequest ═══════► Replica: RequestWork
           keys, limits  checks, pins the seed   places by   ◄═ RequestUpdated, RequestFailed ═┘
           metrics                               prefix
```

Open `replica_pool.py` first: the door's end, which places requests, hears their answers and asks again where a replica
was lost. `request_work.py` is the other end, and the messages between them. Replicas are started, compared and replaced
by `qpdsl/cluster`.

What must hold: the door reads a request as a replica does, by the models without their weights, so what is refused is
refused before it is placed. The seed is in the request when it is sent, so every replica gives the same answer, and
what a client has of it already is cut from that of the next one.
"""
