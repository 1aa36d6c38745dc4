"""The `tool` operator: the calls of all rows, side by side."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from qpdsl.executor.events.events import ToolCalled
from qpdsl.executor.runtime.instance.candidates import Candidates, Row
from qpdsl.executor.runtime.instance.instance import Instance, RowError
from qpdsl.executor.runtime.instance.row_tasks import together
from qpdsl.executor.runtime.instance.tools import CallableTool, CallPlace
from qpdsl.planner.plan import ops
from qpdsl.planner.values.value import Value


async def tool(op: ops.Tool, rows: Candidates, instance: Instance) -> Candidates:
    """The column is what each row's tool gives, or a text that says why it gives nothing; of several calls, a list.

    It is None where the row has no call, or one of a schema. Raises RowError where nobody handed the tool in.
    """
    seconds = instance.number("timeout", op.timeout)
    at_most = None if op.at_most is None else instance.whole("at_most", op.at_most)

    async def called(row: Row, call: _Call | None, number: int = 0) -> Value:
        if call is None:
            return None
        tool = instance.services.functions.get(call.name)
        if not isinstance(tool, CallableTool):
            return _no_tool(op, call.name)
        place = CallPlace(instance.name, instance.seed, op.stage, instance.rounds, row.path, number)
        services, begun = instance.services, time.monotonic()
        answer, made = await services.tool_calls.result(
            tool, call.arguments, place, services.call_store, seconds=seconds, at_most=at_most, clock=instance.clock
        )
        instance.usage.counts.update(tool_calls=int(made), tool_kept=int(not made), tool_errors=int(answer.failed))
        services.events.emit(
            ToolCalled(
                instance=instance.name,
                operator=instance.operator,
                tool=call.name,
                seconds=time.monotonic() - begun,
                made=made,
                failed=answer.failed,
            )
        )
        return answer.value

    async def given(row: Row, calls: _Call | list[_Call | None] | None) -> Value:
        if not isinstance(calls, list):
            return await called(row, calls)
        return tuple(await together(called(row, call, number) for number, call in enumerate(calls)))

    values = await together(given(*asked) for asked in zip(rows, _calls(op, rows, instance), strict=True))
    if op.into is None:
        return rows
    return tuple(row.with_column(op.into.id, value) for row, value in zip(rows, values, strict=True))


class _Call(NamedTuple):
    name: str
    arguments: Mapping[str, Value]


def _calls(op: ops.Tool, rows: Candidates, instance: Instance) -> Sequence[_Call | list[_Call | None] | None]:
    """What each row calls: a tool, none, or several."""
    if op.columns is not None:
        given = {column.name: instance.values(column.value, rows) for column in op.columns}
        # What is none is left out, so that the tool's own default stands.
        each = ({name: values[at] for name, values in given.items()} for at in range(len(rows)))
        return [
            _Call(op.name.id, {name: value for name, value in arguments.items() if value is not None})
            for arguments in each
        ]
    written = [row.columns.get(op.name.id) for row in rows]
    return [[*map(_call_in, value)] if isinstance(value, tuple) else _call_in(value) for value in written]


def _call_in(value: Value) -> _Call | None:
    name = value.get("name") if isinstance(value, Mapping) else None
    arguments = value.get("arguments") if isinstance(value, Mapping) else None
    return _Call(name, arguments) if isinstance(name, str) and isinstance(arguments, Mapping) else None


def _no_tool(op: ops.Tool, name: str) -> Value:
    if op.columns is not None:
        raise RowError(f"no tool `{name}` is handed in")
    return None
