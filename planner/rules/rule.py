"""What a rule is: a pure function over physical plans, with what people are told of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from qpdsl.planner.plan.physical import Equivalence, PhysicalPlan


@dataclass(frozen=True, slots=True)
class Rule:
    """`description` is one line; `place` says why the rule stands where it does in the order.

    `equivalence` is what the rule keeps: the plan after it computes the same function as the one before (`exact`), or
    one that is close to it. `apply` returns the plan itself where it has nothing to change.
    """

    name: str
    description: str
    equivalence: Equivalence
    place: str
    apply: Callable[[PhysicalPlan], PhysicalPlan]
