"""The rules, in the order in which they run. Each is a pure function from plan to plan.

Open `planner/plan/rule.py` first: what a rule carries besides its function. All that a rule can do is to leave
operators out, and to write into an operator's strategy or the plan's own fields, which the runtime reads; it never
changes what an operator means. What a decision leaves out of rows must be read by nobody: `planner/plan/reads.py`
says who reads what, and is the one place to ask. A rule neither times, logs nor verifies anything: the driver in
`planner/optimize` does. Each rule is proved by fixtures in `tests/planner/rules`: programs whose names begin with the
rule's. The tests run the plan before the rule and the plan after it.

A new rule with a decision needs a field of a strategy, a file here and a place in `RULES`, the code in `executor` that
carries the decision out, a fixture, and a paragraph in `docs/tune/cost.md`. EXPLAIN, the choice by cost, estimates and
statistics find it through `RULES`, by what the rule declares. A rule that only sets a flag wherever it applies is an
entry in `flags.py`. Those about the decoding step inside a `generate` are made in `decode.py`, from what its variants
say of themselves; those for models on servers stand in `remote/`.
"""

from __future__ import annotations

from qpdsl.planner.rules import (
    decided_vote,
    drop_unread,
    in_flight,
    merge_equal,
    score_ahead,
    speculative_expansion,
    stop_when_matched,
    unread_logprobs,
)
from qpdsl.planner.rules.decode import DRAFT_TOKENS, REPLACEMENTS
from qpdsl.planner.rules.flags import COLLAPSE_GREEDY, INCREMENTAL_SCORE, SCORE_CACHE, SHARE_PREFIXES
from qpdsl.planner.rules.remote import prefix_first, speculative_calls

# `Rule.place` says why each rule stands where it does.
RULES = (
    drop_unread.RULE,
    merge_equal.RULE,
    unread_logprobs.RULE,
    COLLAPSE_GREEDY,
    SHARE_PREFIXES,
    prefix_first.RULE,
    INCREMENTAL_SCORE,
    SCORE_CACHE,
    stop_when_matched.RULE,
    decided_vote.RULE,
    score_ahead.RULE,
    REPLACEMENTS["jump_forward"],
    REPLACEMENTS["option_tree"],
    DRAFT_TOKENS,
    REPLACEMENTS["defer_layers"],
    REPLACEMENTS["filter_in_runs"],
    speculative_expansion.RULE,
    speculative_calls.RULE,
    REPLACEMENTS["sparse_logits"],
    in_flight.RULE,
)
# What decisions change about what a `generate` draws, by the names of their rules.
EFFECTS = {rule.name: rule.effect for rule in RULES if rule.effect is not None}
