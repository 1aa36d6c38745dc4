"""Finding out what a server does, by what it answers. Open `server_probe.py` first: it asks and says what was seen.

A probe sends a request whose right answer shows that the server did what it was asked for, and would not come about
otherwise: two seeds, each of them twice, a regex that the model would not write, known text to be scored. A status of
200 shows nothing. What is asked is written by the dialect, in the very form in which the engine will ask.

`identity.py` finds out which server it is and what models it has, `vocabulary.py` whether its token ids are those of a
tokenizer here. For each form of prompts (ids, text, messages) there is a client (`probe_client.py`), by which
`drawn.py` sees what decides the draws, `held.py` what the output is held to and where it ends, `told.py` what is told
of it. An ability counts where all forms have it. `known_servers.py` keeps what was found.
"""
