"""The rules, in the order in which they run. Each is a pure function from plan to plan in a file of its own.

Open `planner/plan/rule.py` first: what a rule carries besides its function. All that a rule can do is to leave
operators out, and to write into an operator's strategy or the plan's own fields, which the runtime reads; it never
changes what an operator means. What a decision leaves out of rows must be read by nobody: `planner/plan/reads.py`
says who reads what, and is the one place to ask. A rule neither times, logs nor verifies anything: the driver in
`planner/optimize` does. Each rule is proved by fixtures in `tests/planner/rules`: programs whose names begin with the
rule's. The tests run the plan before the rule and the plan after it.

A new rule with a decision needs a field of a strategy, a file here and a place in `RULES`, the code in `executor` that
carries the decision out, a fixture, and a paragraph in `docs/rules.md`. EXPLAIN and the choice by cost find it through
`RULES`. Rules about the decoding step inside a `generate` stand in `decode/`, those for models on servers in `remote/`.
"""

from __future__ import annotations

from qpdsl.planner.rules import (
    collapse_greedy,
    decided_vote,
    drop_unread,
    in_flight,
    incremental_score,
    merge_equal,
    score_cache,
    share_prefixes,
    speculative_expansion,
    stop_when_matched,
)
from qpdsl.planner.rules.decode import (
    defer_layers,
    draft_tokens,
    filter_in_runs,
    jump_forward,
    option_tree,
    sparse_logits,
    unread_logprobs,
)
from qpdsl.planner.rules.remote import prefix_first, speculative_calls

# `Rule.place` says why each rule stands where it does.
RULES = (
    drop_unread.RULE,
    merge_equal.RULE,
    unread_logprobs.RULE,
    collapse_greedy.RULE,
    share_prefixes.RULE,
    prefix_first.RULE,
    incremental_score.RULE,
    score_cache.RULE,
    stop_when_matched.RULE,
    decided_vote.RULE,
    jump_forward.RULE,
    option_tree.RULE,
    draft_tokens.RULE,
    defer_layers.RULE,
    filter_in_runs.RULE,
    speculative_expansion.RULE,
    speculative_calls.RULE,
    sparse_logits.RULE,
    in_flight.RULE,
)
