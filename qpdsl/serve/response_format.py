"""`response_format`, as OpenAI's API has it: its kind and its JSON Schema."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

from qpdsl.serve.completion_request import Refusal, check_fields

FIELD = "response_format"
_FIELDS: Mapping[str, Collection[str]] = {
    "text": ("type",),
    "json_object": ("type",),
    "json_schema": ("type", "json_schema"),
}
_SCHEMA_FIELDS = ("name", "description", "schema", "strict")


def read_response_format(asked: Any) -> tuple[Literal["text", "json_object", "json_schema"], Any]:
    """The kind of format, and the schema of a `json_schema`, which is an object or a bool. Raises Refusal."""
    kind = asked.get("type") if isinstance(asked, dict) else "text" if asked is None else None
    if not isinstance(kind, str) or kind not in _FIELDS:
        raise Refusal("`response_format` has the type `text`, `json_object` or `json_schema`", FIELD)
    check_fields(asked or {}, _FIELDS[kind], FIELD, FIELD)
    if kind != "json_schema":
        return ("text" if kind == "text" else "json_object"), None
    described = asked.get("json_schema")
    schema = described.get("schema") if isinstance(described, dict) else None
    if not isinstance(schema, dict | bool):
        raise Refusal('a format of the type `json_schema` has {"json_schema": {"name": …, "schema": {…}}}', FIELD)
    check_fields(described, _SCHEMA_FIELDS, f"{FIELD}.json_schema", FIELD)
    return "json_schema", schema
