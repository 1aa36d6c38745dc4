"""Operators over the columns alone: `let`, `where`, `keep`, `distinct`, `order`, and the value that `return` reads."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from qpdsl.executor.runtime.instance.candidates import Candidates, JsonValue, Row
from qpdsl.executor.runtime.instance.instance import Decision, Instance, NoAnswerError, RowError
from qpdsl.executor.runtime.operators.extract import why_not_found
from qpdsl.executor.runtime.operators.json_documents import record
from qpdsl.executor.runtime.operators.valid_records import fault_of
from qpdsl.grammar import ast
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.evaluate import evaluate_rows
from qpdsl.planner.plan.reads import names, outlives_rows
from qpdsl.planner.values.value import Value, thawed


async def let(op: ops.Let, rows: Candidates, instance: Instance) -> Candidates:
    """Sets the column in each row to the value of the expression."""
    values = instance.values(op.value, rows)
    return tuple(row.with_column(op.column.id, value) for row, value in zip(rows, values, strict=True))


async def where(op: ops.Where, rows: Candidates, instance: Instance) -> Candidates:
    """The rows whose condition is true; None is not."""
    return tuple(row for row, holds in zip(rows, instance.values(op.condition, rows), strict=True) if holds)


async def top_k(op: ops.Keep, rows: Candidates, instance: Instance) -> Candidates:
    """The `k` best rows of each group, groups in the order first seen. Raises RowError.

    With `like`, as search-and-learn does it: the rows kept stay in their order, and a group whose best row is at its
    end is kept whole and closed. Where one row of all is kept, its value is left in `Instance.supports`.
    """
    k = instance.whole("keep", op.count, rows) if rows else 0
    values = instance.values(op.by, rows)
    kept: list[Row] = []
    groups = grouped(rows, op.per)
    instance.decision = Decision(groups, values)
    for group in groups:
        # Python's sort is stable, so that ties stay in row order; a row without a value sorts after all others.
        best = sorted(group, key=lambda index: sort_key(values[index]), reverse=True)[:k]
        if op.like is not None:
            best.sort()
        if best and op.like is not None and op.per is not None and _is_at_end(rows[best[0]]):
            kept += [_closed(rows[index]) for index in group]
        else:
            kept += [rows[index] for index in best]
            if k == 1 and op.per is None and sort_key(values[best[0]])[0]:
                instance.supports[instance.operator] = float(sort_key(values[best[0]])[1])
    return tuple(kept)


async def first(op: ops.First, rows: Candidates, instance: Instance) -> Candidates:
    """The first rows of each group, all in the order in which they stand. Raises RowError."""
    count = instance.whole("first", op.count, rows) if rows else 0
    groups = grouped(rows, op.per)
    instance.decision = Decision(groups)
    kept = {index for group in groups for index in group[:count]}
    return tuple(row for index, row in enumerate(rows) if index in kept)


async def distinct(op: ops.Distinct, rows: Candidates, instance: Instance) -> Candidates:
    """The first row of each value, within each group; none is a value too."""
    values = instance.values(op.by, rows)
    groups = grouped(rows, op.per)
    instance.decision = Decision(groups, values)
    firsts = [{values[index]: index for index in reversed(group)} for group in groups]
    kept = {index for group in firsts for index in group.values()}
    return tuple(row for index, row in enumerate(rows) if index in kept)


async def order(op: ops.Order, rows: Candidates, instance: Instance) -> Candidates:
    """The rows, greatest number first, then texts in the order of their characters, then those without a value."""
    values = instance.values(op.by, rows)
    places = range(len(rows))
    numbers = sorted((p for p in places if sort_key(values[p])[0]), key=lambda p: sort_key(values[p]), reverse=True)
    texts = sorted((p for p in places if isinstance(values[p], str)), key=lambda p: str(values[p]))
    sorted_ = {*numbers, *texts}
    return tuple(rows[p] for p in (*numbers, *texts, *(p for p in places if p not in sorted_)))


def grouped(rows: Candidates, per: ast.Name | None) -> list[list[int]]:
    """The places of the rows of each value of a column, in the order first seen; of all rows where there is none."""
    groups: dict[Value, list[int]] = {}
    for index, row in enumerate(rows):
        groups.setdefault(None if per is None else row.columns.get(per.id), []).append(index)
    return list(groups.values())


def _is_at_end(row: Row) -> bool:
    """Whether search-and-learn follows the row no further."""
    return row.generated.finished or "boxed{" in row.generated.text


def _closed(row: Row) -> Row:
    """The row as one that nothing is added to any more, wherever it stopped."""
    generated = replace(row.generated, finished=True, closed=True)
    return replace(row, columns={**row.columns, "finished": True}, generated=generated)


def return_value(op: ops.Return, rows: Candidates, instance: Instance) -> JsonValue:
    """The value of the program over its last rows, or the record in it. Raises NoAnswerError where there is none."""
    try:
        return _value(op, rows, instance)
    except NoAnswerError as none:
        if op.otherwise is None and op.optional:
            return None
        scopes = [instance.scope(row) for row in rows]
        value = None if op.otherwise is None else evaluate_rows(op.otherwise, scopes, instance.arguments)
        if value is None and not op.optional:
            # Something that was read may be none, and the program says why.
            first = rows[0].columns if rows and not rows[0].generated.incomplete else {}
            whys = [
                f"`{name}` is none: {why}" + (f": {why_not_found(sought, rows[:1])}" if sought.own else "")
                for name, why, sought in op.nones
                if first.get(name, "") is None
            ]
            raise NoAnswerError(*whys[:1] or none.args) from none
        given: JsonValue = thawed(value)
        return given


def _value(op: ops.Return, rows: Candidates, instance: Instance) -> JsonValue:
    if not rows and (op.parse or not outlives_rows(op.value, instance.arguments)):
        raise _nothing_left(instance)
    if op.parse and rows[0].generated.invalid is not None:
        raise RowError(f"the record breaks its schema, though llguidance let it through: {rows[0].generated.invalid}")
    if op.parse and rows[0].generated.incomplete:
        raise NoAnswerError(
            "the output was cut off before the record in it was whole; `max_tokens` or the context is short"
        )
    value = evaluate_rows(op.value, [instance.scope(row) for row in rows], instance.arguments)
    if value is None and not rows:
        raise _nothing_left(instance)
    if value is None and rows[0].generated.incomplete and rows[0].generated.invalid is None:
        why = "what the first row generated was cut off before it was whole; `max_tokens` or the context is short"
        raise NoAnswerError(f"no row has a value to return: {why}")
    if value is None:
        raise NoAnswerError("no row has a value to return")
    try:
        given: JsonValue = record(str(value)) if op.parse else thawed(value)
    except (ValueError, RecursionError) as error:
        raise NoAnswerError(f"what is to be returned is no JSON: {error}") from error
    if op.schema is None:
        return given
    given = _without_none(given)
    fault = fault_of(json.dumps(given, ensure_ascii=False), op.schema)
    if fault is not None:
        raise NoAnswerError(f"the result is not of the type that the program declares: {fault}")
    return given


def _nothing_left(instance: Instance) -> NoAnswerError:
    return NoAnswerError(": ".join(["no row is left", *instance.emptied[-1:]]))


def _without_none(value: Any) -> Any:
    """A JSON value without the fields that are none: a field that may be absent is never null."""
    if isinstance(value, dict):
        return {name: _without_none(part) for name, part in value.items() if part is not None}
    return [_without_none(part) for part in value] if isinstance(value, list) else value


def why_none(op: ops.Operator, rows: Candidates) -> str:
    """Why an operator left none of these rows, in words for the user."""
    match op:
        case ops.Where(condition=condition):
            read = ", ".join(dict.fromkeys(f"`{name.id}`" for name in names(condition)))
            return f"`where` held for none of the rows{f', by {read}' if read else ''}"
        case ops.Vote(column=column, weight=weight, sought=sought):
            either = f"`{column.id}`" if weight is None else f"`{column.id}` or its weight"
            none = f"`vote {column.id}` found no answer, since {either} is none in each row"
            unfound = sought is not None and all(row.columns[column.id] is None for row in rows)
            return f"{none}: {why_not_found(sought, rows)}" if sought is not None and unfound else none
        case ops.Each(column=column):
            return f"`each {column.id}` found nothing to go through: the list of every row is empty, or there is none"
    return f"`{op.operator.lower()}` left none"


def sort_key(value: Value) -> tuple[bool, float]:
    """Whether the value is a number (NaN is none), and the number, 0 where it is none: no number sorts below all."""
    return (True, value) if isinstance(value, (int, float)) and value == value else (False, 0)
