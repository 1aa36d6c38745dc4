"""Merges equal parts of a plan: scores of the same rows by the same verifier, and arms that draw the same."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import fields, replace

from qpdsl.planner.plan import ops
from qpdsl.planner.plan.options import constant
from qpdsl.planner.plan.physical import BranchStrategy, PhysicalOp, PhysicalPlan, ScoreStrategy, everything
from qpdsl.planner.plan.reads import (
    Columns,
    Parts,
    column_expressions,
    made_columns,
    names,
    reads_all_rows,
    whole_state_access,
)
from qpdsl.planner.plan.rule import Chain, Rule, decide, map_chains

NAME = "merge_equal"
# Parts of an operator that say nothing of what it does: the stage is a number, the ordinal matters to the noise alone.
_NOT_MEANT = ("stage", "ordinal")
# Parts of a scorer that say what is made of the answers, and not what is asked; a judge is asked for what it reduces.
_MADE_OF_ANSWERS = ("into", "reduce")
# What a scorer is shown of a row, besides the columns that it names.
_ASKED_OF: Parts = frozenset({"context", "text"})


def merge_equal(plan: PhysicalPlan) -> PhysicalPlan:
    """What an operator is equal to stands before it in the same chain of operators."""
    return map_chains(plan, _merged)


def _merged(chain: Chain) -> Chain:
    known: dict[Hashable, PhysicalOp] = {}
    merged: list[PhysicalOp] = []
    for node in chain:
        changed = whole_state_access(node).changes
        made = made_columns(node.op, [inner[-1].columns for inner in node.inside if inner])
        if isinstance(node.strategy, BranchStrategy):
            node = decide(node, BranchStrategy(_equal_arms(node)), NAME)
        question = _question(node.op)
        if question is not None and isinstance(node.strategy, ScoreStrategy):
            first = known.setdefault(question, node)
            if first is not node:
                node = decide(node, replace(node.strategy, same_as=first.id), NAME)
        # An earlier score says nothing of a row that is another now, or in which what it was asked about is.
        known = {
            question: first
            for question, first in known.items()
            if not changed & _ASKED_OF and not made & _columns_of_question(first.op)
        }
        merged.append(node)
    return tuple(merged)


def _question(op: ops.Operator) -> Hashable:
    """What a scorer is asked about a row: the same is answered the same, whatever is made of the answer.

    Models go by their names in the program, since others may be put in their places when the plan is made already.
    """
    if not isinstance(op, (ops.StepScore, ops.Judge, ops.Prob)) or any(map(reads_all_rows, column_expressions(op))):
        return None
    aside = ("into",) if isinstance(op, ops.Judge) else _MADE_OF_ANSWERS
    asked = [part.name for part in fields(op) if part.compare and part.name not in (*_NOT_MEANT, *aside)]
    return op.operator, *(repr(getattr(op, name)) for name in asked)


def _columns_of_question(op: ops.Operator) -> Columns:
    return frozenset(name.id for expr in column_expressions(op) for name in names(expr))


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
    """False for Python functions and tools too: nothing is known of what they do, so each is called as often as it
    stands."""
    if not isinstance(op, ops.Generate):
        return not isinstance(op, (ops.PythonScore, ops.PythonExtract, ops.Tool))
    temperature = constant(op.temperature)
    return getattr(temperature, "value", None) == 0


def _meaning(chain: Chain) -> list[object]:
    """What the operators do, but for their numbers, which at most the noise depends on."""
    return [
        (
            node.op.operator,
            [
                (part.name, getattr(node.op, part.name))
                for part in fields(node.op)
                if part.compare and part.name not in _NOT_MEANT
            ],
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
    "before any other decision, which could make equal operators differ",
    merge_equal,
    _words,
)
