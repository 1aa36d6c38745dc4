"""The `split` operator: copies of rows, a fixed number of each or a budget shared out by value."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, takewhile

from qpdsl.executor.events.events import Path
from qpdsl.executor.runtime.instance.candidates import Candidates, Row, uniform
from qpdsl.executor.runtime.instance.instance import Decision, Instance, check_rows, checked
from qpdsl.executor.runtime.operators.relational import grouped, sort_key
from qpdsl.executor.verifiers.verifier import SCORE_DIGITS
from qpdsl.grammar.words import Drawn
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.reads import varies

# Sharing out at a temperature below this gives all to the greatest value.
_COLDEST = 1e-6
# Beyond this exponent a share is nothing, and the exponential underflows.
_SMALLEST_EXPONENT = -700.0


async def split(op: ops.Split, rows: Candidates, instance: Instance) -> Candidates:
    """Each copy's index joins its path, and `group` numbers the copies over all rows. Raises RowError."""
    if not rows:
        return ()
    if op.by is not None:
        copies = _copies(op, rows, instance)
        # The groups that a row is shared out in are to be there still.
        return copies if op.per is not None else tuple(row.with_column("group", n) for n, row in enumerate(copies))
    may_drop = varies(op.count, rows[0].columns)
    counts = [
        0 if may_drop and type(count) is int and count == 0 else int(checked("split", count))
        for count in instance.values(op.count, rows)
    ]
    check_rows(sum(counts))
    each = [
        replace(row, path=(*row.path, copy)) for row, count in zip(rows, counts, strict=True) for copy in range(count)
    ]
    return tuple(row.with_column("group", number) for number, row in enumerate(each))


def _copies(op: ops.Split, rows: Candidates, instance: Instance) -> Candidates:
    """The copies of all rows, each group shared out by itself."""
    count = instance.whole("split", op.count, rows)
    temperature = 1.0 if op.temperature is None else instance.number("split temperature", op.temperature, rows)
    assert op.by is not None and temperature is not None
    keys = [sort_key(value) for value in instance.values(op.by, rows)]
    values = [value if is_number else None for is_number, value in keys]
    groups = grouped(rows, op.per)
    if instance.watched:
        instance.decision = Decision(groups, values, _told_shares(op, rows, groups, values, temperature))
    check_rows(len(rows) + len(groups) * count)
    copies: list[Row] = []
    # Groups whose rows share no more than those of another one have random numbers of their own all the same.
    alike: Counter[Path] = Counter()
    for group in groups:
        part = [rows[at] for at in group]
        shared = _shared_path(part)
        key = instance.chance(op.ordinal, part[0].context, shared)
        chance = partial(uniform, key, alike[shared])
        alike[shared] += 1
        copies += _shared_out(op, part, [values[at] for at in group], count, temperature, chance)
    return tuple(copies)


def _shared_path(rows: Sequence[Row]) -> Path:
    paths = [row.path for row in rows]
    return tuple(
        one for one, _ in takewhile(lambda pair: pair[0] == pair[1], zip(min(paths), max(paths), strict=False))
    )


def _shared_out(
    op: ops.Split,
    rows: list[Row],
    values: list[float | None],
    count: int,
    temperature: float,
    chance: Callable[[int], float],
) -> list[Row]:
    """`count` rows: copies of those that are shared out, first copies first, and the finished ones that pass."""
    passes = [_passes(op, row) for row in rows]
    shared = [value for value, passing in zip(values, passes, strict=True) if not passing]
    left = max(count - sum(passes), 0)
    if op.draw is None:
        widths = iter(shares(shared, left, temperature))
    else:
        rounded = [None if value is None else round(value, SCORE_DIGITS) for value in shared]
        drawn = Counter(resampled(_weights(rounded, temperature), left, op.draw, chance))
        widths = iter([drawn[index] for index in range(len(shared))])
    copies = [1 if passing else next(widths) for passing in passes]
    return [
        replace(row, path=(*row.path, copy))
        for copy in range(max(copies, default=0))
        for row, width in zip(rows, copies, strict=True)
        if copy < width
    ]


def _passes(op: ops.Split, row: Row) -> bool:
    return row.generated.finished and op.finished == "pass"


def _told_shares(
    op: ops.Split,
    rows: Sequence[Row],
    groups: Sequence[Sequence[int]],
    values: Sequence[float | None],
    temperature: float,
) -> list[float | None]:
    """By row, the share of the copies of its group that is due to it; None for one that passes."""
    told: list[float | None] = [None] * len(rows)
    for group in groups:
        shared = [place for place in group if not _passes(op, rows[place])]
        weights = _weights([values[place] for place in shared], temperature)
        total = math.fsum(weights)
        for place, weight in zip(shared, weights, strict=True):
            told[place] = round(weight / total, SCORE_DIGITS)
    return told


def shares(values: Sequence[float | None], count: int, temperature: float) -> list[int]:
    """`count` in whole parts that follow the softmax of `values` over `temperature`. A value that is None gets no part.

    From the greatest value on, each takes its share of what is left, rounded up, so that the parts add up to `count`
    (Wu et al., "Inference Scaling Laws", 2024, as their code has it). Where every value is None all are alike.
    """
    weights = _weights(values, temperature)
    parts = [0] * len(values)
    left, total = count, math.fsum(weights)
    for index in sorted(range(len(values)), key=lambda index: -weights[index]):
        if left <= 0 or total <= 0 or weights[index] <= 0:
            break
        # Without the 1e-9 a rounding error would turn a whole share into the next one up.
        parts[index] = min(left, math.ceil(left * weights[index] / total - 1e-9))
        left -= parts[index]
        total -= weights[index]
    return parts


def resampled(weights: Sequence[float], count: int, draw: Drawn, chance: Callable[[int], float]) -> list[int]:
    """The indices of `count` copies, of each as many on average as its share of the weights.

    `chance` gives a number between 0 and 1 for each copy, of which "systematic" takes the first alone. So the copies of
    a smaller count are the first of a greater one where they are drawn one by one.
    """
    if not weights:
        return []
    ends = list(accumulate(weights))
    # A sum that is rounded down must not lead to what weighs nothing.
    last = max(index for index, weight in enumerate(weights) if weight > 0)
    first = chance(0) if draw == "systematic" else 0.0
    places = [(first + copy) / count if draw == "systematic" else chance(copy) for copy in range(count)]
    return [min(bisect_right(ends, place * ends[-1]), last) for place in places]


def _weights(values: Sequence[float | None], temperature: float) -> list[float]:
    """The softmax of `values` over `temperature`, its greatest 1: nothing for one that is None, unless all are."""
    numbers = [value for value in values if value is not None]
    if not numbers:
        return [1.0] * len(values)
    top, soft = max(numbers), max(temperature, _COLDEST)
    return [0.0 if value is None else math.exp(max((value - top) / soft, _SMALLEST_EXPONENT)) for value in values]
