"""Models on servers as a session has them: `servers.py` finds out what they can do, and has one engine serve them.

`needs.py` says what a plan needs of a server that was not seen to do it, before anything is sent. `spending.py` has the
options that bound what a run may take, and where completions are kept. `probing.py` asks a server for people who want
to know, and `abilities_words.py` says what was found.

Nothing here knows of sessions or commands. `executor/remote` does the work, and needs the extra `qpdsl[remote]`, which
is imported once a model is on a server.
"""
