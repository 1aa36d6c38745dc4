"""The `chat` and `prompt` operators: starting a row's context, and going on with it."""

from __future__ import annotations

from collections.abc import Mapping

from qpdsl.executor.runtime.instance.candidates import FRESH, Candidates, Row
from qpdsl.executor.runtime.instance.instance import Instance
from qpdsl.executor.text.context import Context
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.evaluate import Value, evaluate, format_value, split_template


async def set_context(op: ops.SetContext, rows: Candidates, instance: Instance) -> Candidates:
    made = []
    for row in rows:
        context = _longer(row, _added(op, instance.scope(row)))
        # Which copy of a `split` a row is, no new turn changes.
        fresh = {**FRESH, "group": row.columns.get("group", FRESH["group"])}
        made.append(Row(context, row.path, {**row.columns, **fresh}))
    return tuple(made)


def _added(op: ops.SetContext, scope: Mapping[str, Value]) -> Context:
    if op.prompt is not None:
        return Context(prompt=tuple(split_template(op.prompt, scope)))
    return Context(turns=tuple((turn.role, format_value(evaluate(turn.content, scope))) for turn in op.turns))


def _longer(row: Row, added: Context) -> Context:
    """The row's context, what was generated in it, and what is added to both."""
    context, generated = row.context, row.generated
    if context is None:
        return added
    if not generated.sampled:
        return Context(context.turns + added.turns, context.prompt + added.prompt)
    if context.turns:
        return Context(turns=(*context.turns, ("assistant", generated.text), *added.turns))
    return Context(prompt=(*context.prompt, (generated.text, False), *added.prompt))
