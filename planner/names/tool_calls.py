"""Calls of tools as plain JSON: what holds the output of a model to them that has no format of its own for calls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from qpdsl.planner.names.json_schema import SPACING, nested
from qpdsl.planner.names.schemas import CompiledSchema
from qpdsl.planner.plan.ops import ConstraintKind
from qpdsl.planner.values.value import list_of

# What a column of calls is, and one of several in a message.
CALL = "{name: text, arguments: record}"
CALLS = list_of(CALL)
# What is such a column, and a text where that is none.
CALL_OR_TEXT = {called: f"text | {called}" for called in (CALL, CALLS)}


def call_schema(tools: Sequence[Mapping[str, Any]], most: int | None = None) -> CompiledSchema:
    """The schema of a call of one of these tools, or of a list of up to `most`.

    Tools are records of a `name` and a checked schema `parameters`.
    """
    place, several = "#" if most is None else "#/items", len(tools) > 1
    calls = [_call_of(tool, f"{place}/anyOf/{at}" if several else place) for at, tool in enumerate(tools)]
    call = {"anyOf": calls} if several else calls[0]
    listed = {"type": "array", "items": call, "minItems": 1, "maxItems": most}
    return CompiledSchema.of("call", call if most is None else listed)


def held_to_calls(schema: CompiledSchema, *, or_text: bool) -> tuple[ConstraintKind, str]:
    """The constraint of an output that is such a call; or a text, which begins as no JSON does, with `or_text`."""
    if not or_text:
        return "json_schema", schema.constraint
    document = json.loads(schema.constraint)
    begun = r"\[{" if document.get("type") == "array" else "{"
    call = json.dumps({**document, "x-guidance": dict(SPACING)})
    return "grammar", f"start: call | TEXT\ncall: %json {call}\nTEXT: /[^{begun}](.|\\n)*/"


def _call_of(tool: Mapping[str, Any], place: str) -> dict[str, Any]:
    """The schema of the calls of one tool, at a place of the whole."""
    fields = {
        "name": {"type": "string", "enum": [tool["name"]]},
        "arguments": nested(tool["parameters"], f"{place}/properties/arguments"),
    }
    return {"type": "object", "properties": fields, "required": [*fields], "additionalProperties": False}
