"""What is left of the rules in a plan that was chosen by cost."""

from __future__ import annotations

from dataclasses import replace

from qpdsl.planner.physical import PhysicalOp, PhysicalPlan, everything
from qpdsl.planner.rules import (
    decided_vote,
    incremental_score,
    score_cache,
    share_prefixes,
    speculative_expansion,
)
from qpdsl.planner.rules.tree import each
from qpdsl.planner.strategy import GenerateHow, How, ScoreHow, VoteHow


def standing(plan: PhysicalPlan) -> PhysicalPlan:
    """The plan without the names of rules whose decisions were turned back, each on its operators and, where no
    operator keeps it, on the whole."""
    kept = each(plan, _standing)
    before, after = _named(plan), _named(kept)
    return replace(kept, rules=tuple(rule for rule in kept.rules if rule not in before or rule in after))


def _named(plan: PhysicalPlan) -> set[str]:
    return {rule for node in everything(plan.ops) for rule in node.rules}


def _standing(node: PhysicalOp) -> PhysicalOp:
    rules = tuple(rule for rule in node.rules if _stands(rule, node.how))
    return node if rules == node.rules else replace(node, rules=rules)


def _stands(rule: str, how: How | None) -> bool:
    match rule, how:
        case share_prefixes.NAME | incremental_score.NAME, GenerateHow(share=on) | ScoreHow(share=on):
            return on
        case score_cache.NAME, ScoreHow(cache=on):
            return on
        case speculative_expansion.NAME, GenerateHow(run_ahead=steps):
            return steps > 0
        case decided_vote.NAME, GenerateHow(vote=vote):
            return vote is not None
        case decided_vote.NAME, VoteHow(decided=on):
            return on
    return True
