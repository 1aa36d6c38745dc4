"""What a plan is: operators, logical and physical plans, what they read, and what every plan satisfies.

Open `ops.py` first (the logical operators), then `physical.py`: the same operators with what was decided about how each
is run, a strategy. The way from the one to the other is `naive.py`, which decides nothing; what is decided after it
stands in strategies (`GenerateStrategy.decode` is in `decode.py`) and in the plan's own fields. Everything here is
frozen: `rewrite.py` makes other plans of a plan. Operators and plans check themselves where they are built, `verify.py`
what only a whole plan shows; both raise `InvalidPlan`, which is a fault of the planner and never of a program.

`reads.py` says which columns and parameters operators read, `evaluate.py` evaluates expressions (for estimates and for
the runtime), `options.py` holds the ranges of what stages take, and `baseline.py` makes the greedy program that a
search is measured against. Nothing here may know a rule, a cost, a model or a tensor.

| decided | carried out in `executor/runtime` |
|---|---|
| `GenerateStrategy.share`, `collapse`, `until` | `generate/sampling.py`, which makes the requests of one `generate` |
| `GenerateStrategy.run_ahead`, with the plan's `floor` | `generate/run_ahead.py`: requests at the lowest priority |
| `GenerateStrategy.vote`, `VoteStrategy` | `generate/decided_vote.py`: rows go to the vote as their samples end |
| `ScoreStrategy` | `operators/score.py`, with the session's score store |
| `BranchStrategy.same_as` | `run.py` |
| `in_flight`, `floor` | `qpdsl/dataset`: another problem starts while the engine has fewer sequences than the floor |
| `kv_type` | the session, which loads the models so |
"""
