"""How many problems run at once, and the fewest sequences to keep the engine busy with.

The thesis's minimum problem batch (section 5.3.3): problems end their search at different times, so another one starts
whenever the engine has fewer sequences than a floor, and never more than so many at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from qpdsl.planner.plan import ops
from qpdsl.planner.plan.evaluate import Scope, evaluate
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.planner.plan.rewrite import Chain
from qpdsl.planner.rules.rule import Rule

# Sequences that decode side by side cost little more than one, up to about so many.
FLOOR = 64
_FEWEST, _MOST = 8, 256


def in_flight(plan: PhysicalPlan) -> PhysicalPlan:
    """A problem's share of the engine is what its widest `generate` makes in one round.

    While some problems are scored, and some have few rows left, others decode: so there are four times as many as would
    reach the floor at their widest.
    """
    width = max(_widths(plan.ops, 1.0, _defaults(plan)), default=1.0)
    problems = min(max(math.ceil(4 * FLOOR / width), _FEWEST), _MOST)
    if (plan.in_flight, plan.floor) == (problems, FLOOR):
        return plan
    return replace(plan, in_flight=problems, floor=FLOOR)


def _widths(chain: Chain, rounds: float, defaults: Scope) -> Iterator[float]:
    """The samples that each `generate` makes in a round; one where that is not known."""
    for node in chain:
        if isinstance(node.op, ops.Generate):
            yield max(node.rows / rounds, 1.0) if node.rows is not None else 1.0
        inside = rounds
        if isinstance(node.op, ops.Repeat):
            limit = evaluate(node.op.limit, defaults)
            inside *= max(limit, 1) if isinstance(limit, (int, float)) else 1
        for inner in (node.body, *node.arms):
            yield from _widths(inner, inside, defaults)


def _defaults(plan: PhysicalPlan) -> Scope:
    return {param.name: evaluate(param.default, {}) for param in plan.params if param.default is not None}


RULE = Rule(
    "in_flight",
    "run as many problems at once as keep the engine busy",
    "exact",
    "last: it counts what the other rules left to be run",
    in_flight,
)
