"""Models on servers that people have: vLLM, SGLang, llama.cpp, and whatever speaks OpenAI's HTTP API.

Read `server/address.py` first, how a model on a server is named, then `server/server_capabilities.py`, what is known of
a server, `servers.py`, the models of a session that are on servers, and `remote_engine.py`, the `Engine` that serves
them.

What a server can do is probed by value (`probe/`), never by status: servers answer 200 to what they ignore. What is not
known to work counts as absent, and is refused before a run (`missing_features.py`). How a request is written for one
kind of server and its answer read is a dialect (`dialects/`).

A sample is one HTTP request with a seed from its own noise key. It is *replayable*: the same seed gives the same tokens
on the same server, but not those of the engine in this process, since noise and logits are the server's. Every
completion is cached by its request key before anyone reads it, so a run that is resumed or repeated sends nothing
twice.

`server_call.py` is one such request, and `written_sample.py` the sample that its answer becomes: where it ends is
decided here, whatever the server did, and what was held to a constraint goes through our own mask again. Requests that
draw nothing are questions whose answers are numbers (`scoring.py`). `request_queue.py` decides which goes next,
`concurrency_limit.py` how many go at once, `server/failures.py` what follows when one fails; `completion_store.py`
caches answers, `spending.py` bounds what is spent.

A model has either its own tokenizer here, and then it is sent token ids of templates that are rendered here; or it has
none, and then its tokens are the bytes of text, which are sent as text or as messages. `remote_model.py` makes the text
model of either, and a verifier over one.

The libraries of the extra `qpdsl[remote]` are imported once a model is on a server.
"""
