"""The `chat` and `prompt` operators: they start a row's context, or append to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from qpdsl.executor.runtime.instance.candidates import FRESH, Candidates, Row
from qpdsl.executor.runtime.instance.instance import Instance
from qpdsl.executor.text.context import Context
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.evaluate import Value, evaluate, format_value, split_template


async def set_context(op: ops.SetContext, rows: Candidates, instance: Instance) -> Candidates:
    """Puts what was generated into the longer context and clears its columns; the other columns stay."""
    return tuple(_with_context(op, row, instance) for row in rows)


def _with_context(op: ops.SetContext, row: Row, instance: Instance) -> Row:
    context = _longer(row, _addition(op, instance.scope(row)))
    # A new turn does not change which copy of a `split` a row is.
    fresh = {**FRESH, "group": row.columns.get("group", FRESH["group"])}
    return Row(context, row.path, {**row.columns, **fresh})


def _addition(op: ops.SetContext, scope: Mapping[str, Value]) -> Context:
    if op.prompt is not None:
        pieces = tuple(split_template(op.prompt, scope))
        return Context(prompt=pieces, opening=len(pieces))
    return Context(turns=tuple((turn.role, format_value(evaluate(turn.content, scope))) for turn in op.turns))


def _longer(row: Row, addition: Context) -> Context:
    """The row's context, what was generated in it, and the addition to both."""
    context, generated = row.context, row.generated
    if context is None:
        return addition
    if not generated.sampled:
        return replace(context, turns=context.turns + addition.turns, prompt=context.prompt + addition.prompt)
    if context.turns:
        return replace(context, turns=(*context.turns, ("assistant", generated.text), *addition.turns), grown=True)
    return replace(context, prompt=(*context.prompt, (generated.text, False), *addition.prompt), grown=True)
