"""`qpdsl serve`: programs, and bare models, behind OpenAI's HTTP API.

Open `served_model.py` first: what a request is, what an answer is, and the protocol between the HTTP side (`http/`) and
what answers. `served_program.py` runs a program for a request, `exposed/` asks a bare model. `offered_models.py` finds
the programs and models that a command line names, and their plans.

A request's body is read by `body_fields.py`, which knows the fields of OpenAI's API and the values that ask for
nothing; `conversation.py` makes arguments of messages; `record_format.py` compares schemas for `response_format`.
`streamable.py` says whose text is the answer while it is written, `answer_cut.py` ends answers where a client wants it,
and `token_forms.py` writes tokens with their log-probabilities.

All requests run in one session, so they share its models, its prefix cache and its memory. What a request asks for and
the server does not do is refused in OpenAI's form of an error (`refusal.py`), never ignored.
"""
