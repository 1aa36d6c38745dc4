"""How many problems run at once, the fewest sequences to keep the engine busy with, and who goes with whom.

The thesis's minimum problem batch (section 5.3.3): problems end their search at different times, so another one starts
whenever the engine has fewer sequences than a floor. No more than a fixed number run at once.

Problems whose prompts begin alike start one after another, where prefixes are shared: then what they have in common is
in memory when they come: the longest prefix first, as the engine's queue has it, but known before they start.

A server elsewhere says itself how many requests it bears, and the engine that asks it limits them by what it sees. It
can only find out if enough problems are there to ask.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from qpdsl.planner.plan import ops
from qpdsl.planner.plan.evaluate import Scope
from qpdsl.planner.plan.physical import PhysicalPlan, everything
from qpdsl.planner.plan.reads import column_expressions, names, value_ahead
from qpdsl.planner.plan.rule import Alternative, Chain, Knob, Rule

# Sequences that decode side by side cost little more than one, up to about so many.
FLOOR = 64
# A server may be many machines.
REMOTE_FLOOR = 256
_FEWEST, _MOST = 8, 256
# What the choice by cost tries: problems at once, and sequences to keep at work.
PROBLEMS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
FLOORS = (16, 32, 64, 128)


def in_flight(plan: PhysicalPlan) -> PhysicalPlan:
    """A problem's share of the engine is what its widest `generate` makes in one round.

    While some problems are scored, and some have few rows left, others decode: so there are four times as many as would
    reach the floor at their widest.
    """
    width = max(_widths(plan.ops, 1.0, plan.values()), default=1.0)
    floor = REMOTE_FLOOR if plan.has_remote() else FLOOR
    problems = min(max(math.ceil(4 * floor / width), _FEWEST), _MOST)
    prompted = _prompted(plan)
    if (plan.in_flight, plan.floor, plan.prompted) == (problems, floor, prompted):
        return plan
    return replace(plan, in_flight=problems, floor=floor, prompted=prompted)


def _prompted(plan: PhysicalPlan) -> tuple[str, ...]:
    """The parameters that prompts read, in their order; none where no prefix is shared."""
    nodes = list(everything(plan.ops))
    if not any(getattr(node.strategy, "share", False) for node in nodes):
        return ()
    params = {param.name for param in plan.params}
    contexts = (node.op for node in nodes if isinstance(node.op, ops.Prompt | ops.Chat))
    read = (name.id for op in contexts for expr in column_expressions(op) for name in names(expr))
    return tuple(dict.fromkeys(name for name in read if name in params))


def _widths(chain: Chain, rounds: float, values: Scope) -> Iterator[float]:
    """The samples that each `generate` makes in a round; one where that is not known."""
    for node in chain:
        if isinstance(node.op, ops.Generate):
            yield max(node.rows / rounds, 1.0) if node.rows is not None else 1.0
        inside = rounds
        if isinstance(node.op, ops.Repeat):
            limit = value_ahead(node.op.limit, values)
            inside *= max(limit, 1) if isinstance(limit, (int, float)) else 1
        if isinstance(node.op, ops.Search):
            simulations = value_ahead(node.op.simulations, values)
            most = 1 if node.op.per_round is None else value_ahead(node.op.per_round, values)
            if isinstance(simulations, (int, float)) and isinstance(most, (int, float)):
                inside *= max(simulations / max(most, 1), 1)
        for inner in node.inside:
            yield from _widths(inner, inside, values)


def problems(plan: PhysicalPlan, ruled: PhysicalPlan, batch: int = 1) -> Iterator[Alternative]:
    """Problems at once."""
    if plan.in_flight is not None:
        for most in sorted({*PROBLEMS, plan.in_flight}):
            other = plan if most == plan.in_flight else replace(plan, in_flight=most)
            yield Alternative(Knob("problems at once"), str(most), other)


def floors(plan: PhysicalPlan, ruled: PhysicalPlan, batch: int = 1) -> Iterator[Alternative]:
    """Sequences below which another problem starts, those of the best batch among them."""
    if plan.in_flight is not None:
        for floor in sorted({*FLOORS, max(batch, FLOORS[0]), plan.floor}):
            other = plan if floor == plan.floor else replace(plan, floor=floor)
            yield Alternative(Knob("sequences to keep at work"), str(floor), other)


RULE = Rule(
    "in_flight",
    "run as many problems at once as keep the engine busy, those that share prefixes one after another",
    "exact",
    "last: it counts what the other rules left to run",
    in_flight,
    joint=(problems, floors),
)
