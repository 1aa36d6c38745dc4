"""What may follow a sample's tokens, proposed for the next forward of its model to check.

Open `drafters.py` first: it has a `Drafter` for each way to draft, and asks those that the samples of a step want. A
`Drafter` is a class with the name of its method, which makes itself of what the engine gives it; a new
one takes a line in `DRAFTERS` of `../served_models.py`. It proposes tokens, or a tree of them; the model runner prunes
what a constraint forbids, computes the rest behind the sample's own tokens in one forward, and keeps what the model
would have drawn. The noise of a draw depends on its position alone, so drafts change how fast tokens come, and none of
them (drafter-invariant sampling: Daliri, Musco and Suresh, 2024). A drafter that draws should draw with the sample's
own noise: then it agrees with the model as often as their distributions allow.

Each way to draft is a file: one looks up what followed the last tokens before, `draft_model.py` lets another model of
the engine follow each sample, `eagle.py` a trained head (`eagle_head.py`), `../exit/self_draft.py` the model's own
first layers; these three draw by `rollout.py`, which asks for one forward a level. `pace.py` says how many tokens to
draft, by what was right and what a step takes by its rows. What it says depends on the clock; no token does.

A drafter never fails a request: without memory, or without an idea, it proposes nothing. What it holds of the engine's
memory goes before any sequence has to wait. What cannot draft at all is refused when a request asks for it.
"""
