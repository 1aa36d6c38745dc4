"""Merges equal parts of a plan: scores of the same rows by the same verifier, and arms that draw the same."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import fields, replace

from qpdsl.planner.plan import ops
from qpdsl.planner.plan.options import constant
from qpdsl.planner.plan.physical import BranchStrategy, PhysicalOp, PhysicalPlan, ScoreStrategy, everything
from qpdsl.planner.plan.rewrite import Chain, decide, each_chain
from qpdsl.planner.rules.rule import Rule

NAME = "merge_equal"
# After these a row may have another text, so that an earlier score says nothing of it.
_CHANGES_TEXT = (ops.SetContext, ops.Generate, ops.Repeat, ops.Branch)


def merge_equal(plan: PhysicalPlan) -> PhysicalPlan:
    """What an operator is equal to stands before it in the same chain of operators."""
    return each_chain(plan, _merged)


def _merged(chain: Chain) -> Chain:
    known: dict[Hashable, str] = {}
    merged: list[PhysicalOp] = []
    for node in chain:
        if isinstance(node.op, _CHANGES_TEXT):
            known.clear()
        if isinstance(node.strategy, BranchStrategy):
            node = decide(node, BranchStrategy(_equal_arms(node)), NAME)
        asked = _asked(node.op)
        if asked is not None and isinstance(node.strategy, ScoreStrategy):
            first = known.setdefault(asked, node.id)
            if first != node.id:
                node = decide(node, replace(node.strategy, same_as=first), NAME)
        merged.append(node)
    return tuple(merged)


def _asked(op: ops.Operator) -> Hashable:
    """What a scorer is asked about a row: the same is answered the same, whatever is made of the answer.

    Models go by their names in the program, since others may be put in their places when the plan is made already.
    """
    match op:
        case ops.Score(verifier=verifier, kind=kind, raw=raw):
            return "score", verifier, kind, raw
        case ops.Judge(model=model, rubric=rubric):
            return "judge", model, rubric
    return None


def _equal_arms(node: PhysicalOp) -> tuple[int | None, ...]:
    """For each arm the first arm before it that does the same, where nothing in it hangs on the noise."""
    first: dict[str, int] = {}
    found: list[int | None] = []
    for number, arm in enumerate(node.arms):
        alike = first.setdefault(repr(_meaning(arm)), number) if _drawn_alike(arm) else number
        found.append(alike if alike != number else None)
    return tuple(found)


def _drawn_alike(arm: Chain) -> bool:
    return bool(arm) and all(_is_greedy(node.op) for node in everything(arm))


def _is_greedy(op: ops.Operator) -> bool:
    if not isinstance(op, ops.Generate):
        return True
    temperature = constant(op.temperature)
    return getattr(temperature, "value", None) == 0


def _meaning(chain: Chain) -> list[object]:
    """What the operators do, but for the number of their stage, which only the noise depends on."""
    return [
        (
            type(node.op).__name__,
            [(part.name, getattr(node.op, part.name)) for part in fields(node.op) if part.name not in _NOT_MEANT],
            _meaning(node.body),
            [_meaning(arm) for arm in node.arms],
        )
        for node in chain
    ]


_NOT_MEANT = ("span", "stage", "body", "arms")

RULE = Rule(
    NAME,
    "score the same rows by the same verifier once, and draw equal greedy arms once",
    "exact",
    "before anything is decided, by which equal operators could come to differ",
    merge_equal,
)
