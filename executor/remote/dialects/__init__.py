"""How a request is written for a kind of server, and how its answer is read. One file a dialect.

`dialect.py` has what a dialect is, and `named`, which gives it by its name. A dialect knows fields and endpoints; it
opens no connection and keeps no state.
"""
