"""What a plan is: operators, logical and physical plans, what they read, and what every plan satisfies.

Open `ops.py` first: the logical operators. Then `physical.py`: the same operators, each with a strategy, which says how
it is run. `naive.py` makes the first physical plan of a logical one and decides nothing. Every later decision is a
field of a strategy (`GenerateStrategy.decode` is in `decode_plan.py`) or of the plan. Everything here is frozen: a rule
(`rule.py`) makes another plan of a plan. Operators and plans check themselves when they are built, and `verify.py`
checks what only a whole plan shows. Both raise `InvalidPlan`, which is a fault of the planner and never of a program.

`reads.py` says which columns and parameters operators read, and which other parts of a row they read and change.
`evaluate.py` evaluates expressions (for estimates and for the runtime), `ranges.py` bounds them, `options.py` holds the
ranges of what stages take. `naive.py` makes the greedy program too that a search is measured against. Nothing here may
know one of the rules, a cost, a model or a tensor.

| decided | carried out in `executor/runtime` |
|---|---|
| `GenerateStrategy.share`, `collapse`, `until` | `generate/sampling.py`, which makes the requests of one `generate` |
| `GenerateStrategy.figures` | `generate/sampling.py`: what is told of each draw, for `scoring/score.py` |
| `GenerateStrategy.decode` | `generate/sampling.py`: what requests ask for; `SAMPLERS` where a sample takes several |
| `GenerateStrategy.run_ahead`, with the plan's `floor` | `generate/speculative_expansion.py`: the next samples |
| `GenerateStrategy.lead` | `generate/sampling.py`: the request says so, and the engine of a server holds to it |
| `GenerateStrategy.beyond`, `continues` | `generate/calls_ahead.py`: samples that are taken from an earlier call |
| `GenerateStrategy.vote`, `VoteStrategy` | `generate/decided_vote.py`: rows go to the vote as their samples end |
| `ScoreStrategy.ahead` | `generate/score_ahead.py`: steps are scored while a sample is drawn |
| `ScoreStrategy` | `scoring/score.py`, with the session's score store; `scoring/judge.py` |
| `BranchStrategy.same_as` | `run.py` |
| `in_flight`, `floor` | `qpdsl/runs`: another problem starts while the engine has fewer sequences than the floor |
| `prompted` | `qpdsl/runs`: problems whose prompts begin alike start one after another |
| `kv_type` | the session, which loads the models so |
| `limits`, `kv_shares` | the session, whose engine steps so |
"""
