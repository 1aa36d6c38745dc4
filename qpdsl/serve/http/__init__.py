"""The HTTP side of `qpdsl serve`: routes, limits, streams and figures, over models that it knows by their protocol.

Open `routes.py` first: the application and its endpoints. `admission_control.py` lets requests in, so many at once and
so many waiting, and drains them; `client_keys.py` knows who may ask; `replies.py` writes answers and chunks as OpenAI
does; `event_stream.py` sends a stream and notices that nobody reads it any more; `server_figures.py` is what `/metrics`
tells; `listening.py` runs it all on uvicorn, bound to a `bind_address.py`, until it is told to stop. Bodies are read
and written by hand: what is on the way of every token makes no object that it does not need.
"""
