"""Finding out what a server does, by what it answers: `probe.py` asks, `known_servers.py` keeps what was found.

A probe sends a request whose right answer shows that the server did what it was asked for, and would not come about
otherwise: two seeds and one seed twice, a regex that the model would not write, known text to be scored. A status of
200 shows nothing.
"""
