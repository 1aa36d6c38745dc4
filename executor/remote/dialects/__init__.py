"""How a request is written for a kind of server, and how its answer is read. One file a dialect.

`openai.py` is what a dialect is: the others say what they have besides. `dialect.py` has what all of them write and
read, and `known_dialects.py` gives one by its name. A dialect knows fields and endpoints; it opens no connection and
keeps no state. It always sends what is neutral too (top_p 1, no penalties), since a server's defaults come from its
model or are its own.
"""
