"""Models on servers that people have: vLLM, SGLang, llama.cpp, and whatever speaks OpenAI's HTTP API.

Read `server/address.py` first, how a model on a server is named, then `server/abilities.py`, what is known of a server,
and `remote_engine.py`, which fulfils the `Engine` protocol with it.

What a server can do is probed by value (`probe/`), never by status: servers answer 200 to what they ignore. What is not
known to work counts as absent, and is refused before a run. How a request is written for one kind of server and its
answer read is a dialect (`dialects/`).

A sample is one HTTP request with a seed from its own noise key. It is *replayable*: the same seed gives the same tokens
on the same server, but not those of the engine in this process, since noise and logits are the server's. Every
completion is kept by its request key before anyone reads it, so a run that is resumed or repeated asks the server for
nothing twice.

`server_call.py` is one such request, and `written_sample.py` the sample that its answer comes to: where it ends is said
here, whatever the server did. `request_queue.py` says which goes next, `concurrency_limit.py` how many go at once,
`server/retries.py` what follows when one fails, `request_key.py` under which key an answer is kept,
`completion_store.py` where, `meter.py` what may be spent.

A model has either its own tokenizer here, and then it is sent token ids of templates that are rendered here; or it has
none, and then its tokens are the bytes of text (`text_tokenizer.py`), which are sent as text or as messages.
`remote_model.py` makes the text model of either, and `remote_verifier.py` a verifier over one.
"""
