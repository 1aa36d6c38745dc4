"""The operators that need no model: context, extract, top-k, vote."""

from __future__ import annotations

import json

from qpdsl.executor.reward.verifier import SCORE_DIGITS
from qpdsl.executor.runtime.candidates import FRESH, Candidates, Row
from qpdsl.executor.runtime.context import Context
from qpdsl.executor.runtime.instance import Instance
from qpdsl.grammar import ast
from qpdsl.planner import ops
from qpdsl.planner.expr import Value, compiled, evaluate, format_value, split_template


async def set_context(op: ops.SetContext, rows: Candidates, instance: Instance) -> Candidates:
    made = []
    for row in rows:
        scope = instance.scope(row)
        if op.prompt is not None:
            context = Context(prompt=tuple(split_template(op.prompt, scope)))
        else:
            context = Context(
                turns=tuple((turn.role, format_value(evaluate(turn.content, scope))) for turn in op.turns)
            )
        made.append(Row(context, row.path, {**row.columns, **FRESH}))
    return tuple(made)


async def extract(op: ops.Extract, rows: Candidates, instance: Instance) -> Candidates:
    return tuple(row.with_column(op.column, _extracted(op.pattern, row.generated.text)) for row in rows)


async def top_k(op: ops.TopK, rows: Candidates, instance: Instance) -> Candidates:
    k = instance.whole("keep", op.k)
    ranked = [(evaluate(op.by, instance.scope(row)), row) for row in rows]
    # Python's sort is stable, so that ties stay in row order; a row without a value sorts after all others.
    ranked.sort(key=lambda pair: _order(pair[0]), reverse=True)
    return tuple(row for _, row in ranked[:k])


async def vote(op: ops.Vote, rows: Candidates, instance: Instance) -> Candidates:
    totals: dict[Value, float] = {}
    best: dict[Value, tuple[float, int]] = {}
    for index, row in enumerate(rows):
        value = row.columns.get(op.column)
        if value is None:
            continue
        weight = _order(1 if op.weight is None else evaluate(op.weight, instance.scope(row)))[1]
        totals[value] = totals.get(value, 0.0) + weight
        if value not in best or weight > best[value][0]:
            best[value] = (weight, index)
    if not totals:
        return ()
    # `max` takes the first of equals, and the dictionary is in the order values were first seen. Rounded, since the
    # rounding errors of a sum must not tell equal totals apart.
    winner = max(totals, key=lambda value: round(totals[value], SCORE_DIGITS))
    return (rows[best[winner][1]],)


def _order(value: Value) -> tuple[bool, float]:
    """A sort key: what is no number, or not a number, comes below all numbers."""
    return (True, value) if isinstance(value, (int, float)) and value == value else (False, 0)


def _extracted(pattern: ast.Regex | ast.JsonPath, text: str) -> Value:
    if isinstance(pattern, ast.JsonPath):
        return _at_path(pattern.steps, text)
    match = compiled(pattern.pattern).search(text)
    if match is None:
        return None
    found = match.group(1) if match.re.groups else match.group(0)
    return found if isinstance(found, str) else None


def _at_path(steps: tuple[str | int, ...], text: str) -> Value:
    """The value at a path of the JSON document in `text`; texts as they are, other values as JSON."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    for step in steps:
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
        else:
            return None
    found = value if isinstance(value, str) or value is None else json.dumps(value, ensure_ascii=False)
    # JSON can spell half a character, which no encoding of text can hold.
    return found.encode("utf-8", "replace").decode() if isinstance(found, str) else None
