"""The operators that need no model and look at no text: `where`, `keep`, `split`, and setting a column.

MERGED: What a program gives back.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from qpdsl.executor.runtime.instance.candidates import Candidates, JsonValue, Row
from qpdsl.executor.runtime.instance.instance import Instance, RowError
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.evaluate import Value, evaluate, evaluate_rows

# Sharing out at a temperature below this gives all to the greatest value.
_COLDEST = 1e-6


async def where(op: ops.Where, rows: Candidates, instance: Instance) -> Candidates:
    return tuple(row for row in rows if evaluate(op.condition, instance.scope(row)))


async def top_k(op: ops.TopK, rows: Candidates, instance: Instance) -> Candidates:
    k = instance.whole("keep", op.k)
    parts: dict[Value, list[Row]] = {}
    for row in rows:
        parts.setdefault(None if op.per is None else row.columns.get(op.per), []).append(row)
    kept: list[Row] = []
    for part in parts.values():
        ranked = [(evaluate(op.by, instance.scope(row)), number, row) for number, row in enumerate(part)]
        # Python's sort is stable, so that ties stay in row order; a row without a value sorts after all others.
        ranked.sort(key=lambda each: order(each[0]), reverse=True)
        best = ranked[:k]
        if op.like is not None:
            best.sort(key=lambda each: each[1])
        if op.like is not None and op.per is not None and _ends(best[0][2]):
            kept += map(_closed, part)
        else:
            kept += [row for _, _, row in best]
    return tuple(kept)


def _ends(row: Row) -> bool:
    """Whether search-and-learn follows the row no further."""
    return row.generated.finished or "boxed{" in row.generated.text


def _closed(row: Row) -> Row:
    """A row that nothing is added to any more, wherever it stopped."""
    generated = replace(row.generated, finished=True, closed=True)
    return replace(row, columns={**row.columns, "finished": True}, generated=generated)


async def split(op: ops.Split, rows: Candidates, instance: Instance) -> Candidates:
    count = instance.whole("split", op.count)
    if op.by is not None:
        return _shared_out(op, count, rows, instance)
    return tuple(
        replace(row, path=(*row.path, copy), columns={**row.columns, "group": index * count + copy})
        for index, row in enumerate(rows)
        for copy in range(count)
    )


def _shared_out(op: ops.Split, count: int, rows: Candidates, instance: Instance) -> Candidates:
    """`count` rows: the finished ones once each, and copies of the others, first copies first."""
    going = [row for row in rows if not row.generated.finished]
    temperature = 1.0 if op.temperature is None else instance.number("split temperature", op.temperature)
    assert op.by is not None and temperature is not None
    values = [order(evaluate(op.by, instance.scope(row))) for row in going]
    numbers = [value if known else None for known, value in values]
    widths = iter(shares(numbers, max(count - (len(rows) - len(going)), 0), temperature))
    copies = [1 if row.generated.finished else next(widths) for row in rows]
    made = [
        replace(row, path=(*row.path, copy))
        for copy in range(max(copies, default=0))
        for row, most in zip(rows, copies, strict=True)
        if copy < most
    ]
    return tuple(row.with_column("group", number) for number, row in enumerate(made))


def shares(values: Sequence[float | None], count: int, temperature: float) -> list[int]:
    """`count` in whole parts that follow the softmax of `values` over `temperature`; none has no part.

    From the greatest value on, each takes its share of what is left, rounded up, so that the parts come to `count` (Wu
    et al., "Inference Scaling Laws", 2024, as their code has it). Where every value is none all are alike.
    """
    known = [value for value in values if value is not None] or [0.0]
    top, soft = max(known), max(temperature, _COLDEST)
    alike = all(value is None for value in values)
    # Beyond this a share is nothing, and the exponential an underflow.
    weights = [
        1.0 if alike else 0.0 if value is None else math.exp(max((value - top) / soft, -700.0)) for value in values
    ]
    parts = [0] * len(values)
    left, whole = count, math.fsum(weights)
    for index in sorted(range(len(values)), key=lambda index: -weights[index]):
        if left <= 0 or whole <= 0 or weights[index] <= 0:
            break
        # A share that is whole but for a rounding error is not the next one up.
        parts[index] = min(left, math.ceil(left * weights[index] / whole - 1e-9))
        left -= parts[index]
        whole -= weights[index]
    return parts


async def assign(op: ops.Assign, rows: Candidates, instance: Instance) -> Candidates:
    if not rows:
        return ()
    value = evaluate_rows(op.value, [instance.scope(row) for row in rows], instance.arguments)
    return tuple(row.with_column(op.column, value) for row in rows)


def order(value: Value) -> tuple[bool, float]:
    """A sort key: what is no number, or not a number, comes below all numbers."""
    return (True, value) if isinstance(value, (int, float)) and value == value else (False, 0)


def returned(op: ops.Return, rows: Candidates, instance: Instance) -> JsonValue:
    """The value of the program over its last rows. Raises RowError where there is none."""
    if not rows:
        raise RowError("no row is left")
    if op.parse and rows[0].generated.incomplete:
        raise RowError("the output was cut off before the record in it was whole; `max_tokens` or the context is short")
    value = evaluate_rows(op.value, [instance.scope(row) for row in rows], instance.arguments)
    if value is None:
        raise RowError("no row has a value to return")
    if not op.parse:
        return value
    try:
        record: JsonValue = _sayable(json.loads(str(value), parse_float=_finite))
    except (ValueError, RecursionError) as error:
        raise RowError(f"what is to be returned is no JSON: {error}") from error
    return record


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {text} is too large")
    return number


def _sayable(value: Any) -> Any:
    """JSON can spell half a character, which no encoding of text can hold."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_sayable(key): _sayable(item) for key, item in value.items()}
    return [_sayable(item) for item in value] if isinstance(value, list) else value
