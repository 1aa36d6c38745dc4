"""A bare model as a served one: its chat and text completions, straight from the engine.

`exposed_model.py` reads a request, `bare_request.py` is what was read, and `bare_work.py` has the engine answer it; the
folder above writes tokens and log-probabilities as OpenAI's API and vLLM do (`token_forms.py`). The fields are
OpenAI's, and vLLM's where OpenAI has none, so that our own server serves qpdsl as any vLLM does.
"""
