"""The `chat` and `prompt` operators: they start a row's context, or append to it."""

from __future__ import annotations

from collections.abc import Mapping

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
        return Context(prompt=tuple(split_template(op.prompt, scope)))
    return Context(turns=tuple((turn.role, format_value(evaluate(turn.content, scope))) for turn in op.turns))


def _longer(row: Row, addition: Context) -> Context:
    """The row's context, what was generated in it, and the addition to both."""
    context, generated = row.context, row.generated
    if context is None:
        return addition
    if not generated.sampled:
        return Context(context.turns + addition.turns, context.prompt + addition.prompt)
    if context.turns:
        return Context(turns=(*context.turns, ("assistant", generated.text), *addition.turns))
    return Context(prompt=(*context.prompt, (generated.text, False), *addition.prompt))
