"""The `vote` operator: the answer with the most weight, and when two answers are the same."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from contextlib import suppress
from decimal import Decimal, InvalidOperation

from qpdsl.executor.runtime.instance.candidates import Candidates
from qpdsl.executor.runtime.instance.instance import Decision, Instance, RowError
from qpdsl.executor.runtime.instance.mathematics import Mathematics, NoMathematics
from qpdsl.executor.runtime.operators.relational import grouped
from qpdsl.executor.verifiers.verifier import SCORE_DIGITS
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.reads import names
from qpdsl.planner.values.value import NUMBER, Value, format_value


def elected(answers: Sequence[Hashable], weights: Sequence[Value]) -> tuple[int, float] | None:
    """The place of the best vote for the answer with the most weight, and that weight; None where nobody votes.

    An answer or a weight of None is no vote. Of equal answers, and of equal votes, the first wins. Weights are numbers
    of 0 or more.
    """
    totals: dict[Hashable, float] = {}
    best: dict[Hashable, tuple[float, int]] = {}
    for place, (answer, weight) in enumerate(zip(answers, weights, strict=True)):
        if answer is None or not isinstance(weight, (int, float)):
            continue
        totals[answer] = totals.get(answer, 0.0) + weight
        if answer not in best or weight > best[answer][0]:
            best[answer] = (weight, place)
    if not totals:
        return None
    # `max` takes the first of equals, and the dictionary is in the order values were first seen. Rounded, since the
    # rounding errors of a sum must not tell equal totals apart.
    winner = max(totals, key=lambda answer: round(totals[answer], SCORE_DIGITS))
    return best[winner][1], totals[winner]


async def vote(op: ops.Vote, rows: Candidates, instance: Instance) -> Candidates:
    """The best row of the winning answer; a row whose answer or weight is None has no vote. No row where none has one.

    Each group of rows votes by itself. Without groups the winner's share of what could be cast is left in
    `Instance.supports`.

    Raises RowError where a weight is below 0 or not finite, or where `equal=math` has nothing to compare with.
    """
    values = [row.columns.get(op.column.id) for row in rows]
    answers = await all_answers_of(op, values, instance)
    sure = instance.number("decided", op.decided)
    weights = [1] * len(rows) if op.weight is None else instance.values(op.weight, rows)
    winners: list[int] = []
    groups = grouped(rows, op.per)
    votes: list[float | None] = [None] * len(rows)
    instance.decision = Decision(groups, _shown(answers, values), votes)
    for group in groups:
        counted = group if sure is None else group[: decided_after([answers[index] for index in group], sure)]
        for index in counted:
            weight = weights[index]
            if answers[index] is not None and isinstance(weight, (int, float)) and not 0 <= weight < math.inf:
                raise RowError(_wrong_weight(op, values[index], weight))
            if answers[index] is not None and isinstance(weight, (int, float)):
                votes[index] = weight
        winner = elected([answers[index] for index in counted], [weights[index] for index in counted])
        if winner is not None:
            place, total = winner
            winners.append(counted[place])
            if op.per is None:
                instance.supports[instance.operator] = round(total / len(counted), SCORE_DIGITS)
    return tuple(rows[index] for index in winners)


def _shown(answers: Sequence[Hashable], values: Sequence[Value]) -> list[str | None]:
    """Each answer as it was first given; None stays None."""
    first: dict[Hashable, str] = {}
    return [
        None if answer is None or value is None else first.setdefault(answer, format_value(value).strip())
        for answer, value in zip(answers, values, strict=True)
    ]


def _wrong_weight(op: ops.Vote, value: Value, weight: float) -> str:
    assert op.weight is not None
    voted, shown = format_value(value).strip(), format_value(weight)
    read = ", ".join(dict.fromkeys(f"`{name.id}`" for name in names(op.weight)))
    wrong = f"it is {shown}{f' by {read}' if read else ''} for the answer `{voted}`"
    return f"`vote {op.column.id}`: a weight is a number of 0 or more, and {wrong}"


def answers_of(op: ops.Vote, values: Sequence[Value]) -> Sequence[Hashable]:
    """The answer of each value, where values are compared as texts or as numbers; None stays None."""
    return [None if value is None else number_of(value) for value in values] if op.equal == "number" else values


def decided_after(answers: Sequence[Hashable], sure: float) -> int | None:
    """After how many of the answers, in their order, the first is `sure` to stay ahead; None where it is not.

    None is no answer.
    """
    counts: Counter[Hashable] = Counter()
    for number, answer in enumerate(answers, 1):
        if answer is not None:
            counts[answer] += 1
            votes = [count for _, count in counts.most_common(2)]
            if stays_ahead(votes[0], sum(votes[1:])) >= sure:
                return number
    return None


def stays_ahead(leader: int, second: int) -> float:
    """The probability that the leader of so many votes is the more frequent answer of the two.

    That of a share over ½ under Beta(leader + 1, second + 1) (Aggarwal et al., "Let's Sample Step by Step", 2023),
    which is that of at most `leader` heads in leader + second + 1 throws of a coin.
    """
    throws, tail = leader + second + 1, 0.0
    # What is left: at most `second` heads, summed from the likeliest number down.
    share = math.exp(
        math.lgamma(throws + 1) - math.lgamma(second + 1) - math.lgamma(throws - second + 1) - throws * math.log(2)
    )
    for heads in range(second, -1, -1):
        tail += share
        share *= heads / (throws - heads + 1)
        if share < tail * 1e-17:
            break
    return 1.0 - tail


async def all_answers_of(op: ops.Vote, values: Sequence[Value], instance: Instance) -> Sequence[Hashable]:
    """The answer of each value: values that count as equal have the same one. None stays None.

    Raises RowError where `equal=math` has nothing to compare with.
    """
    if op.equal != "math":
        return answers_of(op, values)
    try:
        return await _mathematical_answers(values, instance.services.mathematics)
    except NoMathematics as error:
        raise RowError(str(error)) from error


def number_of(value: Value) -> Hashable:
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
        key = None if value is None else number_of(value)
        if key not in numbers:
            numbers[key] = await _first_same(format_value(value).strip(), texts, mathematics)
    return [numbers[None if value is None else number_of(value)] for value in values]


async def _first_same(text: str, texts: list[str], mathematics: Mathematics) -> int:
    """The number of the first of `texts` that is the same as `text`; where there is none, `text` joins them."""
    for number, other in enumerate(texts):
        if await mathematics.same(other, text):
            return number
    texts.append(text)
    return len(texts) - 1
