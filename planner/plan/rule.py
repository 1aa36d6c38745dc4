"""What a rule is: a pure function over physical plans, with all that other code needs to know about its decision.

Everything about a decision is in its rule. EXPLAIN shows the rule's words for it, and the choice by cost takes it back
where it does not pay, through the alternatives that the rule offers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from qpdsl.planner.plan.decode_plan import Equivalence
from qpdsl.planner.plan.physical import PhysicalOp, PhysicalPlan


@dataclass(frozen=True, slots=True)
class Knob:
    """Something about a plan that can be chosen by cost: of one operator, or of the plan as a whole (a joint knob).

    `what` says it in words; it may be empty where the operator has this knob alone. `operator` is the operator's id and
    `stage` the word of its kind; both are empty for a joint knob.
    """

    what: str = ""
    stage: str = ""
    operator: str = ""

    def __str__(self) -> str:
        subject = f"{self.stage} {self.operator}".strip()
        return ": ".join(part for part in (subject, self.what) if part)


@dataclass(frozen=True, slots=True)
class Alternative:
    """A plan in which one knob stands at `value`, in words. `measured` says what is known of one that is not exact."""

    knob: Knob
    value: str
    plan: PhysicalPlan
    measured: str = ""


Alternatives = Callable[[PhysicalPlan, PhysicalPlan], Iterator[Alternative]]
JointAlternatives = Callable[[PhysicalPlan, PhysicalPlan, int], Iterator[Alternative]]


def _no_words(node: PhysicalOp) -> Iterator[str]:
    return iter(())


def _no_alternatives(plan: PhysicalPlan, ruled: PhysicalPlan) -> Iterator[Alternative]:
    return iter(())


@dataclass(frozen=True, slots=True)
class Rule:
    """`description` is one line; `place` says why the rule stands where it does in the order.

    `equivalence` is what the rule keeps: the plan after it computes the same function as the one before (`exact`), or
    one that is close to it. `apply` returns the plan itself where it has nothing to change.

    `words` says how an operator runs by the rule's decision; it says nothing where no decision stands on the operator.
    A rule that decides about operators has words for each of its decisions.

    `alternatives(plan, ruled)` gives, for each operator about which there is a decision in `ruled` (the plan as the
    rules left it), `plan` with that decision and `plan` without it. `joint` holds one function a joint knob:
    `alternatives(plan, ruled, batch)` gives `plan` with the knob at each of its values, and nothing where the rule
    decided nothing in `ruled`. `batch` is the number of sequences side by side with which the slowest model is fastest.
    """

    name: str
    description: str
    equivalence: Equivalence
    place: str
    apply: Callable[[PhysicalPlan], PhysicalPlan]
    words: Callable[[PhysicalOp], Iterator[str]] = _no_words
    alternatives: Alternatives = _no_alternatives
    joint: tuple[JointAlternatives, ...] = ()

    def stands(self, node: PhysicalOp) -> bool:
        """Whether a decision of this rule stands on the operator."""
        return any(self.words(node))
