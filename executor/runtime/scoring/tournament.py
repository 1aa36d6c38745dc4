"""The `best by compare(…)` operator: a knockout tournament in which a model says which of two rows is better.

A model favours what it is shown first (Zheng et al., "Judging LLM-as-a-Judge", 2023, section 3.3), so a match is asked
about in both orders.
"""

from __future__ import annotations

from collections.abc import Sequence

from qpdsl.executor.runtime.instance.candidates import Candidates, Row
from qpdsl.executor.runtime.instance.instance import Instance
from qpdsl.executor.runtime.operators.relational import grouped
from qpdsl.executor.runtime.scoring.answers import answer_logprobs
from qpdsl.executor.runtime.scoring.prob import shares
from qpdsl.executor.verifiers.verifier import SCORE_DIGITS
from qpdsl.grammar.words import COMPARED
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.evaluate import evaluate
from qpdsl.planner.plan.physical import ScoreStrategy
from qpdsl.planner.values.value import format_value

_ANSWERS = ("A", "B")


async def tournament(op: ops.Tournament, rows: Candidates, instance: Instance, strategy: ScoreStrategy) -> Candidates:
    """The winner; with `per` those of all values, in the order in which the values are first seen.

    All matches of a round are asked about at once. A match that does not fit into the model's context is a tie, and is
    counted. Raises RowError where the model cannot be asked.
    """
    standing = [[rows[index] for index in group] for group in grouped(rows, op.per)]
    while any(len(group) > 1 for group in standing):
        matches = [pair for group in standing for pair in _pairs(group)]
        winners = iter(await _winners(op, matches, instance, strategy))
        standing = [[*_bye(group), *(next(winners) for _ in _pairs(group))] for group in standing]
    return tuple(winner for (winner,) in standing)


def _bye(group: list[Row]) -> list[Row]:
    """The first row where their number is odd."""
    return group[: len(group) % 2]


def _pairs(group: list[Row]) -> list[tuple[Row, Row]]:
    rest = group[len(group) % 2 :]
    return list(zip(rest[::2], rest[1::2], strict=True))


async def _winners(
    op: ops.Tournament, matches: Sequence[tuple[Row, Row]], instance: Instance, strategy: ScoreStrategy
) -> list[Row]:
    orders = [(a, b) for a, b in matches] + ([(b, a) for a, b in matches] if op.both else [])
    questions = [(_question(op, a, b, instance), _ANSWERS) for a, b in orders]
    found = await answer_logprobs(op.model, questions, instance, strategy, f"`best by compare({op.model}, …)`")
    firsts = [0.5 if logprobs is None else shares(logprobs)[0] for logprobs in found]
    turned = [1 - share for share in firsts[len(matches) :]] or firsts
    chances = [
        round((own + other) / 2, SCORE_DIGITS) for own, other in zip(firsts[: len(matches)], turned, strict=True)
    ]
    return [a if chance >= 0.5 else b for (a, b), chance in zip(matches, chances, strict=True)]


def _question(op: ops.Tournament, a: Row, b: Row, instance: Instance) -> str:
    pair = dict(zip(COMPARED, (a.columns, b.columns), strict=True))
    return format_value(evaluate(op.question, {**instance.arguments, **pair}))
