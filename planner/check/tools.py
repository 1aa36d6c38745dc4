"""`tool`, which calls what the caller hands in, and `generate … as call(…)`, which writes such a call."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from qpdsl.grammar import ast
from qpdsl.grammar.format.unparse import format_call
from qpdsl.grammar.source import Span
from qpdsl.grammar.suggest import did_you_mean, listed
from qpdsl.planner.check.binder import Binder
from qpdsl.planner.check.call import by_name
from qpdsl.planner.names.constraints import refusal
from qpdsl.planner.names.json_schema import value_type
from qpdsl.planner.names.modules import ToolForm
from qpdsl.planner.names.schemas import CompiledSchema
from qpdsl.planner.names.tool_calls import CALL, CALLS, call_schema, held_to_calls
from qpdsl.planner.names.types import Typer
from qpdsl.planner.plan import ops
from qpdsl.planner.values.value import fits, is_list, is_record, item_of


def tool(binder: Binder, stage: ast.Tool, number: int) -> ops.Operator:
    binder.check_part(stage, "timeout")
    binder.check_part(stage, "at_most")
    if stage.arguments is None:
        columns, returns = None, _of_column(binder, stage)
    else:
        columns, returns = _of_tool(binder, stage, stage.arguments)
    if stage.into is not None:
        # What fails gives a text.
        binder.make(stage, stage.into, returns if returns in ("text", "[unknown]") else "unknown")
    return replace(stage, arguments=None, columns=columns, stage=number)


def call_constraint(binder: Binder, target: ast.CallTarget) -> tuple[ast.Constraint | None, CompiledSchema | None]:
    """The constraint of `as call(…)`, and its schema; None where there is an error, which is reported."""
    found: dict[str, ToolForm] = {}
    for ref in target.tools:
        if ref.name in found:
            binder.scope.error("QP208", f"`{ref.name}` stands twice in this call", ref.span, "again")
        elif (form := _callable(binder, ref)) is not None:
            found[ref.name] = form
    if len(found) < len(target.tools):
        return None, None
    tools = [
        {"name": name, "description": form.description, "parameters": dict(form.schema)} for name, form in found.items()
    ]
    schema = call_schema(tools, target.most)
    why_not = refusal("json_schema", schema.constraint)
    if why_not is not None:
        message = "no call can be held to the arguments of these tools"
        binder.scope.error("QP307", message, target.span, "llguidance refuses it", notes=(why_not,))
        return None, None
    shown = format_call(target)
    kind, source = held_to_calls(schema, or_text=target.or_text)
    told = json.dumps(tools, ensure_ascii=False)
    type_ = CALL if target.most is None else CALLS
    constraint = ast.Constraint(
        kind, source, shown, schema.source, type_, tools=told, or_text=target.or_text, most_calls=target.most
    )
    return constraint, schema


def _callable(binder: Binder, ref: ast.ToolRef) -> ToolForm | None:
    """A tool, or a schema of records as one."""
    if (form := binder.environment.tools.get(ref.name)) is not None:
        return form
    schemas = binder.module.schemas
    if ref.name not in schemas:
        _report_unknown(binder, ref.name, ref.span, schemas.names())
        return None
    schema = schemas.get(ref.name)
    if schema is None:
        return None
    if not is_record(value_type(schema.document)):
        binder.scope.error("QP306", f"a call is of a record, and `{ref.name}` is none", ref.span)
        return None
    return ToolForm(schema.document)


def _of_column(binder: Binder, stage: ast.Tool) -> str:
    """What a call that stands in a column gives."""
    type_ = binder.scope.column(stage.name, stage)
    tools = binder.environment.tools
    several = is_list(type_)
    if type_ != "unknown" and not is_record(item_of(type_) if several else type_):
        message = f"`tool {stage.name.id}` takes a call, which is a record of a `name` and its `arguments`"
        help = "write one with `generate … as call(TOOL, …) into NAME`"
        if stage.name.id in tools:
            help = f"`{stage.name.id}` is a tool too: `tool {stage.name.id}(…)` calls it"
        binder.scope.error("QP209", message, stage.name.span, f"this is {type_}", help=help)
    if several:
        return "[unknown]"
    return "text" if tools and all(form.returns == "text" for form in tools.values()) else "unknown"


def _of_tool(
    binder: Binder, stage: ast.Tool, written: tuple[ast.Argument, ...]
) -> tuple[tuple[ops.GivenColumn, ...], str]:
    """The arguments of a tool that is called by its name, and the type of what it gives."""
    name = stage.name
    types = {id(one): Typer(binder.scope, stage, "row", f"`{name.id}`").type(one.value) for one in written}
    form = binder.environment.tools.get(name.id)
    if form is None:
        _report_unknown(binder, name.id, name.span)
        return (), "unknown"
    fields: Mapping[str, Any] = form.schema.get("properties", {})
    arguments = by_name(binder, name.id, written, list(fields))
    if arguments is None:
        return (), form.returns
    missing = [key for key in form.schema.get("required", ()) if key not in arguments]
    if missing:
        message = f"`{name.id}` needs a value for {listed(missing, last='and')}"
        binder.scope.error("QP231", message, name.span, "not given")
    for key, one in arguments.items():
        wanted, actual = value_type({**fields[key], "$defs": form.schema.get("$defs", {})}), types[id(one)]
        if not fits(actual, wanted) and "none" not in (actual, wanted):
            message = f"`{key}` of `{name.id}` takes {wanted}, found {actual}"
            binder.scope.error("QP209", message, one.value.span, f"this is {actual}")
    return tuple(ops.GivenColumn(key, types[id(one)], one.value) for key, one in arguments.items()), form.returns


def _report_unknown(binder: Binder, name: str, span: Span, schemas: tuple[str, ...] = ()) -> None:
    tools = binder.environment.tools
    fix = did_you_mean(name, (*tools, *schemas), span)
    help = f'a program names tools, and the caller hands them in: `--tool "{name}=FILE.py:FUNCTION"` or '
    fix = fix or {"help": help + f'`--tool "{name}=mcp:URL#TOOL"`'}
    notes = (f"tools: {', '.join(tools) or 'none are handed in'}",)
    binder.scope.error("QP280", f"there is no tool `{name}` here", span, "not handed in", notes=notes, **fix)
