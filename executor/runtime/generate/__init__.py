"""The ways to sample, of which a plan's `GenerateStrategy` picks one.

Open `generate.py` first: the operator, and who draws the samples. `continuation.py` goes from a row to the tokens that
it continues, and from a sample to the row that it makes. `sampling.py` makes the requests to the engine.

What draws samples otherwise has a file of its own: `choice.py` scores options whole, `filter.py` asks two models token
by token. A new variant of the decode plan that one request cannot draw is such a file and a line in `SAMPLERS`.
`run_ahead.py` draws the next round's samples early, and `decided_vote.py` ends sampling once a vote cannot change.

A sample's tokens depend on its prompt, its parameters and its noise key alone. So whatever a file here does about when
and how tokens are drawn, they must come out the same.
"""
