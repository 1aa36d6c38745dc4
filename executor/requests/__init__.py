"""What an engine is asked and what it answers, in token ids alone. Nothing here knows how an engine works.

Open `engine.py` first: the `Engine` protocol is all that the runtime needs, and several engines are one. `request.py`
holds the three requests and the `Completion` that answers each, `ticket.py` the handle of a request that was submitted,
`errors.py` the refusals, `drawing.py` what may be asked of draws. `latencies.py`
says what counts as waiting for a token, `routing.py` who decides how a head is computed, `shadow.py` which draws the
full model makes too.

An engine of another kind is a class that fulfils `Engine`, in a folder of its own that imports this one. It makes a
`Ticket` for each request and resolves it by `finish_sample`, `finish_read`, `finish` or `fail`. Nothing here may import
another folder of the product, nor torch.
"""
