"""Servers under load: `load.py` compares them, `soak.py` asks ours for hours' worth of requests.

`client.py` is the client of both, in a process of its own; it needs the standard library alone. `servers.py` starts
the servers, `direct.py` asks the engine without HTTP, and `replicas.py` compares replicas with one process.
"""
