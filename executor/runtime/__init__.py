"""Running a physical plan over one problem: operators over candidate rows, and the events that they emit.

Open `run.py` first. One run of a program is one coroutine; an operator is an async function from rows to rows, and one
that needs a model submits requests to the engine and awaits their tickets. The engine batches the requests of all
instances, so many problems share a forward without anything being done for it here. The arms of a `branch` run side by
side in one instance: each operator counts its own tokens, and a scorer is held by one arm at a time, so that equal
content is scored once. `instance/` is what operators share, `operators/` has the operators, `scoring/` those that
score, `sandbox/` the process in which code of a model is run, `generate/` the ways to sample, `tree_search/` the
trees of a `search`.

The runtime does what a plan's strategies say and decides nothing. Without `share` every sample is an uncached request
of its own, without `cache` a new text is scored whole. `GenerateStrategy` is carried out in `generate/`,
`ScoreStrategy` in `scoring/score.py` and `scoring/judge.py`, `BranchStrategy` in `run.py`. `requirements.py` says what
a plan needs of the engine.

Nothing here may import an engine: the runtime knows the `Engine` protocol, requests and tickets alone. (Options that
are drawn here, `as choice` and `via filter`, use the engine's `step/sampler.py`.)
"""
