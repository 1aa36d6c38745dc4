"""Merges equal parts of a plan: scores of the same rows by the same verifier, and arms that draw the same."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import fields, replace

from qpdsl.planner.plan import ops
from qpdsl.planner.plan.options import constant
from qpdsl.planner.plan.physical import BranchStrategy, PhysicalOp, PhysicalPlan, ScoreStrategy, everything
from qpdsl.planner.plan.rewrite import Chain, decide, map_chains
from qpdsl.planner.rules.rule import Rule

NAME = "merge_equal"
# Parts of an operator that say nothing of what it does: the stage matters to the noise alone.
_NOT_MEANT = ("span", "stage", "body", "arms")
# After these a row may have another text, so that an earlier score says nothing of it.
_CHANGES_TEXT = (ops.SetContext, ops.Generate, ops.Repeat, ops.Branch)


def merge_equal(plan: PhysicalPlan) -> PhysicalPlan:
    """What an operator is equal to stands before it in the same chain of operators."""
    return map_chains(plan, _merged)


def _merged(chain: Chain) -> Chain:
    known: dict[Hashable, str] = {}
    merged: list[PhysicalOp] = []
    for node in chain:
        if isinstance(node.op, _CHANGES_TEXT):
            known.clear()
        if isinstance(node.strategy, BranchStrategy):
            node = decide(node, BranchStrategy(_equal_arms(node)), NAME)
        question = _question(node.op)
        if question is not None and isinstance(node.strategy, ScoreStrategy):
            first = known.setdefault(question, node.id)
            if first != node.id:
                node = decide(node, replace(node.strategy, same_as=first), NAME)
        merged.append(node)
    return tuple(merged)


def _question(op: ops.Operator) -> Hashable:
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
    """For each arm the first arm before it that does the same, where nothing in it depends on the noise."""
    firsts: dict[str, int] = {}
    same_as: list[int | None] = []
    for number, arm in enumerate(node.arms):
        first = firsts.setdefault(repr(_meaning(arm)), number) if _ignores_noise(arm) else number
        same_as.append(first if first != number else None)
    return tuple(same_as)


def _ignores_noise(arm: Chain) -> bool:
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


def _words(node: PhysicalOp) -> Iterator[str]:
    match node.strategy:
        case ScoreStrategy(same_as=str(first)):
            yield f"as {first}"
        case BranchStrategy(same_as=same_as):
            yield from (f"arm {arm} as arm {same + 1}" for arm, same in enumerate(same_as, 1) if same is not None)


RULE = Rule(
    NAME,
    "score the same rows by the same verifier once, and draw equal greedy arms once",
    "exact",
    "before other rules decide anything, since their decisions could make equal operators differ",
    merge_equal,
    _words,
)
