"""What may follow a sample's tokens, proposed for the next forward of its model to check.

Open `drafters.py` first: it has a `Drafter` for each way to draft, and asks those that the samples of a step want. A
`Drafter` (`drafter.py`) proposes tokens, or a tree of them; the model runner prunes what a constraint forbids, computes
the rest behind the sample's own tokens in one forward, and keeps what the model would have drawn. The noise of a draw
depends on its position alone, so drafts change how fast tokens come, and none of them (drafter-invariant sampling:
Daliri, Musco and Suresh, 2024). A drafter that draws should draw with the sample's own noise: then it agrees with the
model as often as their distributions allow.

A drafter never fails a request: without memory, or without an idea, it proposes nothing.
"""
