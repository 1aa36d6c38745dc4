"""How a request is written for a kind of server, and how its answer is read. One file a dialect.

`dialect.py` has what a dialect is, `known_dialects.py` gives it by its name, and `openai.py` is what the others have in
common. A dialect knows fields and endpoints; it opens no connection and keeps no state. It always sends what is neutral
too (top_p 1, no penalties), since a server's defaults come from its model or are its own.
"""
