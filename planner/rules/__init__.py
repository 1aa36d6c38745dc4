"""The rules, in the order in which they run. Each is a pure function in a file of its own."""

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

# Two kinds of rules have their place here and nothing to decide as yet. One that drafts (n-grams, a model, a tree) goes
# before `speculative_expansion` and says in `GenerateStrategy` what drafts and how far. One that picks heads (dense, sparse,
# amortized with a rerank) goes after it, since masks and drafts decide which rows a head gets. With noise that hangs on
# the row alone (docs/architecture.md, "Sampling") a draft is exact, and a head is as exact as its logits.
# Why each stands where it does is said beside it (`Rule.place`), and in docs/rules.md.
RULES = (
    drop_unread.RULE,
    merge_equal.RULE,
    collapse_greedy.RULE,
    share_prefixes.RULE,
    incremental_score.RULE,
    score_cache.RULE,
    stop_when_matched.RULE,
    decided_vote.RULE,
    speculative_expansion.RULE,
    in_flight.RULE,
)
