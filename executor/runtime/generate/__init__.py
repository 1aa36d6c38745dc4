"""The ways to sample. A plan's `GenerateStrategy` picks one of them.

Open `generate.py` first: the operator, and who draws the samples. `continuation.py` goes from a row to the tokens that
it continues, and from a sample to the row that it makes. `sampling.py` makes the requests to the engine.

Each way to draw samples that takes more than one request has a file of its own: `choice.py` scores whole options, so it
needs no mask; `filter.py` and `contrast.py` have two models write one sample, by pieces (`piecewise.py`). A new variant
of the decode plan that needs several requests for a sample takes such a file and a line in `SAMPLERS`. The next round's
samples may run ahead, and `decided_vote.py` ends sampling once a vote cannot change. `calls_ahead.py` takes samples
from what earlier ones wrote past their stop.

A sample's tokens depend on its prompt, its parameters and its noise key alone. A file here may change when and how
tokens are drawn, but never which.
"""
