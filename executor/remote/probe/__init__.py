"""Finding out what a server does, by what it answers. Open `server_probe.py` first: it asks for all of it.

A probe sends a request whose right answer shows that the server did what it was asked for, and would not come about
otherwise: two seeds, each of them twice, a regex that the model would not write, known text to be scored. A status of
200 shows nothing. What is asked is written by the dialect, in the very form in which the engine will ask.

`identity.py` finds out which server it is and what models it has. For each form of prompts (ids, text, messages) there
is a client (`probe_client.py`), for which `sampling_probe.py` finds out what decides the draws, `constraint_probe.py`
what the output is held to and where it ends, and `response_probe.py` what an answer has beside its text. A capability
counts where all forms have it. `thinking_probe.py` finds out how a model thinks before it answers; what else is asked
leaves room for that. `scoring_probe.py` asks for numbers about given tokens. `known_servers.py` caches what
was found, and asks a server for people who want to know. `patient_connection.py` waits for a server that is busy.
"""
