"""`qpdsl serve`: programs, and models themselves, behind OpenAI's HTTP API.

Open `served_model.py` first: what an answer is, and the protocol between the HTTP side (`http/`) and what answers. A
request is a `CompletionRequest` (`completion_request.py`), which knows the fields of OpenAI's API and the values that
ask for nothing. A model makes a `PreparedRequest` of it: `served_program.py` runs a program, `passthrough_model.py` and
`passthrough_request.py` ask a model itself. `offered_models.py` finds the programs and models that a command line
names, and their plans.

`constraint_bounds.py` bounds what has to be compiled. `thinking_fields.py` reads how a model is to think, and
`tool_fields.py` which tools it may call; `written_calls.py` tells a model's calls from its text. `conversation.py`
makes arguments of messages; `record_format.py` compares schemas for `response_format`. `streamed_text.py` gathers
text while it is written and cuts it where a client wants it to end, and `token_forms.py` writes tokens with their
log-probabilities.

All requests run in one session, so they share its models, its prefix cache and its memory; with `replicas/` in that of
one of several processes. What a request asks for and
the server does not do is refused in OpenAI's form of an error; what it leaves out where it is told to (`lenience.py`)
it says in a header.
"""
