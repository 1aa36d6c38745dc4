"""What may follow a sample's tokens, proposed for the next forward of its model to check.

Open `drafters.py` first: it has a `Drafter` for each way to draft, and asks those that the samples of a step want. A
`Drafter` (`drafter.py`) proposes tokens, or a tree of them; the model runner prunes what a constraint forbids, computes
the rest behind the sample's own tokens in one forward, and keeps what the model would have drawn. The noise of a draw
depends on its position alone, so drafts change how fast tokens come, and none of them (drafter-invariant sampling:
Daliri, Musco and Suresh, 2024). A drafter that draws should draw with the sample's own noise: then it agrees with the
model as often as their distributions allow.

`ngram.py` looks up what followed the last tokens before (`history.py`). `draft_model.py` lets another model of the
engine follow each sample, `self_draft.py` the model's own first layers, `eagle.py` a trained head (`eagle_head.py`);
these three draw by `rollout.py`, which asks for one forward a level. `branching.py` joins continuations to a tree.
`pace.py` says how many tokens to draft, by what was right and what a step takes by its rows (`step_times.py`). What it
says depends on the clock; no token does.

A drafter never fails a request: without memory, or without an idea, it proposes nothing. What it holds of the engine's
memory goes before any sequence has to wait. What cannot draft at all is refused when a request asks for it.
"""
