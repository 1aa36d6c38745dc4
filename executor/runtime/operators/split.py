"""The `split` operator: copies of rows, a fixed number of each or a budget shared out by value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from qpdsl.executor.runtime.instance.candidates import Candidates, Row
from qpdsl.executor.runtime.instance.instance import Instance, check_rows
from qpdsl.executor.runtime.operators.relational import grouped, sort_key
from qpdsl.planner.plan import ops

# Sharing out at a temperature below this gives all to the greatest value.
_COLDEST = 1e-6
# Beyond this exponent a share is nothing, and the exponential underflows.
_SMALLEST_EXPONENT = -700.0


async def split(op: ops.Split, rows: Candidates, instance: Instance) -> Candidates:
    """Each copy's index joins its path, and `group` numbers the copies over all rows. Raises RowError."""
    count = instance.whole("split", op.count)
    check_rows(len(rows) * count if op.by is None else len(rows) + len(grouped(rows, op.per)) * count)
    if op.by is not None:
        copies = _copies(op, count, rows, instance)
        # The groups that a row is shared out in are to be there still.
        return copies if op.per is not None else tuple(row.with_column("group", n) for n, row in enumerate(copies))
    return tuple(
        replace(row, path=(*row.path, copy), columns={**row.columns, "group": index * count + copy})
        for index, row in enumerate(rows)
        for copy in range(count)
    )


def _copies(op: ops.Split, count: int, rows: Candidates, instance: Instance) -> Candidates:
    """The copies of all rows, each group shared out by itself."""
    temperature = 1.0 if op.temperature is None else instance.number("split temperature", op.temperature)
    assert op.by is not None and temperature is not None
    keys = [sort_key(value) for value in instance.values(op.by, rows)]
    values = [value if is_number else None for is_number, value in keys]
    groups = grouped(rows, op.per)
    parts = [([rows[at] for at in group], [values[at] for at in group]) for group in groups]
    return tuple(row for part, own in parts for row in _shared_out(part, own, count, temperature))


def _shared_out(rows: list[Row], values: list[float | None], count: int, temperature: float) -> list[Row]:
    """`count` rows: the finished ones once each, and copies of the others, first copies first."""
    pairs = zip(rows, values, strict=True)
    open_values = [value for row, value in pairs if not row.generated.finished]
    widths = iter(shares(open_values, max(count - (len(rows) - len(open_values)), 0), temperature))
    copies = [1 if row.generated.finished else next(widths) for row in rows]
    return [
        replace(row, path=(*row.path, copy))
        for copy in range(max(copies, default=0))
        for row, width in zip(rows, copies, strict=True)
        if copy < width
    ]


def shares(values: Sequence[float | None], count: int, temperature: float) -> list[int]:
    """`count` in whole parts that follow the softmax of `values` over `temperature`. A value that is None gets no part.

    From the greatest value on, each takes its share of what is left, rounded up, so that the parts add up to `count`
    (Wu et al., "Inference Scaling Laws", 2024, as their code has it). Where every value is None all are alike.
    """
    numbers = [value for value in values if value is not None]
    if numbers:
        top, soft = max(numbers), max(temperature, _COLDEST)
        weights = [
            0.0 if value is None else math.exp(max((value - top) / soft, _SMALLEST_EXPONENT)) for value in values
        ]
    else:
        weights = [1.0] * len(values)
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
