"""The `vote` operator: the answer with the most weight, and when two answers are the same."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal, InvalidOperation

from qpdsl.executor.runtime.instance.candidates import Candidates, Row
from qpdsl.executor.runtime.instance.instance import Instance, RowError
from qpdsl.executor.runtime.instance.mathematics import Mathematics, NoMathematics
from qpdsl.executor.verifiers.verifier import SCORE_DIGITS
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.evaluate import NUMBER, Value, evaluate, format_value
from qpdsl.planner.plan.reads import names


async def vote(op: ops.Vote, rows: Candidates, instance: Instance) -> Candidates:
    """The best row of the winning answer; a row whose answer or weight is None has no vote. No row where none has one.

    Raises RowError where a weight is below 0 or not finite, or where `equal=math` has nothing to compare with.
    """
    values = [row.columns.get(op.column) for row in rows]
    try:
        answers = await _answers(op, values, instance)
    except NoMathematics as error:
        raise RowError(str(error)) from error
    totals: dict[Hashable, float] = {}
    best: dict[Hashable, tuple[float, int]] = {}
    for index, (row, answer) in enumerate(zip(rows, answers, strict=True)):
        weight = None if answer is None else weight_of(op, row, instance.scope(row))
        if answer is None or weight is None:
            continue
        if not 0 <= weight < math.inf:
            assert op.weight is not None
            voted, shown = format_value(values[index]).strip(), format_value(weight)
            read = ", ".join(dict.fromkeys(f"`{name.id}`" for name in names(op.weight)))
            wrong = f"it is {shown}{f' by {read}' if read else ''} for the answer `{voted}`"
            raise RowError(f"`vote {op.column}`: a weight is a number of 0 or more, and {wrong}")
        totals[answer] = totals.get(answer, 0.0) + weight
        if answer not in best or weight > best[answer][0]:
            best[answer] = (weight, index)
    if not totals:
        return ()
    # `max` takes the first of equals, and the dictionary is in the order values were first seen. Rounded, since the
    # rounding errors of a sum must not tell equal totals apart.
    winner = max(totals, key=lambda answer: round(totals[answer], SCORE_DIGITS))
    return (rows[best[winner][1]],)


def weight_of(op: ops.Vote, row: Row, scope: Mapping[str, Value] | None = None) -> float | None:
    """What a row adds to its answer: 1, or its weight; None where that is none, so that the row has no vote.

    The weight is evaluated over `scope`, by default the row's columns.
    """
    value = 1 if op.weight is None else evaluate(op.weight, row.columns if scope is None else scope)
    return value if isinstance(value, (int, float)) else None


def answers_of(op: ops.Vote, values: Sequence[Value]) -> Sequence[Hashable]:
    """The answer of each value, where values are compared as texts or as numbers; None stays None."""
    return [None if value is None else _number(value) for value in values] if op.equal == "number" else values


async def _answers(op: ops.Vote, values: Sequence[Value], instance: Instance) -> Sequence[Hashable]:
    """The answer of each value: equal values have the same one. None stays None."""
    if op.equal == "math":
        return await _mathematical_answers(values, instance.services.mathematics)
    return answers_of(op, values)


def _number(value: Value) -> Hashable:
    """A decimal number, or a text with the space around it taken off."""
    text = format_value(value).strip()
    if NUMBER.fullmatch(text):
        with suppress(InvalidOperation):
            return Decimal(text)
    return text


async def _mathematical_answers(values: Sequence[Value], mathematics: Mathematics) -> list[Hashable]:
    """For each value the number of the first text that is the same mathematics."""
    texts: list[str] = []
    numbers: dict[Hashable, int | None] = {None: None}
    for value in values:
        key = None if value is None else _number(value)
        if key not in numbers:
            numbers[key] = await _first_same(format_value(value).strip(), texts, mathematics)
    return [numbers[None if value is None else _number(value)] for value in values]


async def _first_same(text: str, texts: list[str], mathematics: Mathematics) -> int:
    """The number of the first of `texts` that is the same as `text`; where there is none, `text` joins them."""
    for number, other in enumerate(texts):
        if await mathematics.same(other, text):
            return number
    texts.append(text)
    return len(texts) - 1
