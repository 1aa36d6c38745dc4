"""The HTTP side of `qpdsl serve`: routes, limits, streams and figures, over models that it knows by their protocol.

Open `routes.py` first: the application and its endpoints. `request_reader.py` reads requests in threads, so that no
request holds up the loop of the engine; `exchange.py` is one request on its way, and its answer in OpenAI's form;
`admission_control.py` lets requests in, so many at once and so many waiting, and ends them, by a `fair_queue.py` of
keys; `client_keys.py` knows who may ask, and `host_check.py` by which name; `event_stream.py` sends a stream and
notices that nobody reads it any more; `server_figures.py` is what `/metrics` shows, and `access_log.py` has a line for
each request; `chat_page.py` is the page at `/`, in `chat.html`; `listening.py` runs it all on uvicorn until it is told
to stop, over connections that `connection.py` bounds. Bodies are read and written by hand: what is on the way of every
token makes no object that it does not need.
"""
