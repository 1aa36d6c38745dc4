"""`response_format`: whether what a program returns is what the client asks for.

A program returns what it declares, so a format is never imposed on it: one that the declared type does not satisfy is
refused. Whether every value of one JSON Schema is one of another is decided keyword by keyword, which is sound and not
complete: what is not seen to hold is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from qpdsl.planner.values.value import dumps
from qpdsl.serve.completion_request import NoPlace
from qpdsl.serve.response_format import FIELD, read_response_format

# What says nothing of the values.
_NOTES = {"$schema", "$id", "$comment", "title", "description", "default", "examples", "deprecated", "$defs"}
_NOTES |= {"definitions", "readOnly", "writeOnly"}
# Bounds by the direction in which they are narrower.
_LEAST = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_MOST = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_EQUAL = ("pattern", "format", "multipleOf", "uniqueItems")
_HELD = {"type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf", "$ref"}
_KNOWN = {*_NOTES, *_LEAST, *_MOST, *_EQUAL, *_HELD}
_MAX_DEPTH = 32
# Alternatives in alternatives double the pairs to compare at each level.
_MAX_COMPARED = 20_000
_NULL: Mapping[str, Any] = {"type": "null"}
_UNKNOWN: Mapping[str, Any] = {"not": {}}
Schema = Mapping[str, Any] | bool


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """A JSON Schema that answers satisfy, once the fields that it requires and that are missing are null."""

    wanted: Schema
    fills: bool

    def filled(self, text: str) -> str:
        """The JSON text of a record, with null for fields that are missing and have to be there."""
        return dumps(_filled(json.loads(text), self.wanted, self.wanted, 0)) if self.fills else text


def read_format(asked: Any, program: str, schema: str | None) -> RecordFormat | None:
    """What `response_format` asks for beyond what a program returns anyway. Raises Refusal where it does not return it.

    `schema` is the JSON Schema of the record that it returns, as text; None where it returns no record.
    """
    kind, wanted = read_response_format(asked)
    if kind == "text":
        return None
    if schema is None:
        raise _refused(f"`{program}` returns no record, so its answer is no JSON object: leave out `response_format`")
    own = json.loads(schema)
    if kind == "json_object":
        if not satisfies(own, {"type": "object"}):
            raise _refused(f"`{program}` returns JSON, but not always an object: leave out `response_format`")
        return None
    if satisfies(own, wanted):
        return None
    if not satisfies(own, wanted, fills=True):
        raise _refused(f"what `{program}` returns need not satisfy this schema; it returns {schema}")
    return RecordFormat(wanted, fills=True)


def satisfies(own: Schema, wanted: Schema, *, fills: bool = False) -> bool:
    """Whether every value of the schema `own` is seen to be one of `wanted`, which may be no valid schema.

    With `fills`, fields that are missing may be filled with null where `wanted` permits it.
    """
    try:
        return _Comparison(own, wanted, fills).within(own, wanted, 0)
    except (TypeError, AttributeError, ValueError, RecursionError):
        return False


def _refused(message: str) -> NoPlace:
    return NoPlace(message, FIELD)


def _filled(value: Any, wanted: Schema, root: Schema, depth: int) -> Any:
    wanted = _resolved(wanted, root)
    if isinstance(wanted, bool) or depth > _MAX_DEPTH:
        return value
    if "anyOf" in wanted:
        # The one that is not null says what is in it.
        options = [option for option in wanted["anyOf"] if _resolved(option, root) != _NULL]
        return _filled(value, options[0], root, depth + 1) if len(options) == 1 and value is not None else value
    if isinstance(value, list):
        return [_filled(part, wanted.get("items", True), root, depth + 1) for part in value]
    if not isinstance(value, dict):
        return value
    fields = wanted.get("properties", {})
    whole = {name: _filled(part, fields.get(name, True), root, depth + 1) for name, part in value.items()}
    return {**whole, **{name: None for name in wanted.get("required", ()) if name not in whole}}


@dataclass(frozen=True, slots=True)
class _Comparison:
    """Of two documents, in which `$ref` points to parts of them."""

    own_root: Schema
    wanted_root: Schema
    fills: bool
    compared: Iterator[int] = field(default_factory=count)

    def within(self, own: Schema, wanted: Schema, depth: int) -> bool:
        if next(self.compared) > _MAX_COMPARED:
            raise ValueError("there is too much to compare")
        if wanted is True or wanted == {} or own is False:
            return True
        if depth > _MAX_DEPTH:
            return False
        own, wanted = _resolved(own, self.own_root), _resolved(wanted, self.wanted_root)
        if isinstance(own, bool) or isinstance(wanted, bool):
            return wanted is True or own is False
        if "anyOf" in own and not own.keys() - _NOTES - {"anyOf"}:
            return all(self.within(option, wanted, depth + 1) for option in own["anyOf"])
        if not wanted.keys() <= _KNOWN:
            return False
        if "anyOf" in wanted:
            rest = {name: value for name, value in wanted.items() if name != "anyOf"}
            fits = any(self.within(own, option, depth + 1) for option in wanted["anyOf"])
            return fits and self.within(own, rest, depth + 1)
        if (values := _values(own)) is not None and (allowed := _values(wanted)) is not None:
            return all(value in allowed for value in values)
        if "enum" in wanted or "const" in wanted:
            return False
        held = _types_within(own, wanted) and _bounds_within(own, wanted)
        return held and self._object(own, wanted, depth) and self._items(own, wanted, depth)

    def _object(self, own: Mapping[str, Any], wanted: Mapping[str, Any], depth: int) -> bool:
        if "object" not in (_types(own) or {"object"}):
            return True
        fields, asked = own.get("properties", {}), wanted.get("properties", {})
        for name in set(wanted.get("required", ())) - set(own.get("required", ())):
            if not self.fills or not self.within(_NULL, asked.get(name, False), depth + 1):
                return False
        others, taken = own.get("additionalProperties", True), wanted.get("additionalProperties", True)
        # A field that is named on one side only meets what the other says of all further fields.
        pairs = [(fields.get(name, others), asked.get(name, taken)) for name in {**fields, **asked}]
        return all(self.within(mine, theirs, depth + 1) for mine, theirs in [*pairs, (others, taken)])

    def _items(self, own: Mapping[str, Any], wanted: Mapping[str, Any], depth: int) -> bool:
        if "array" not in (_types(own) or {"array"}) or "items" not in wanted:
            return True
        return self.within(own.get("items", True), wanted["items"], depth + 1)


def _resolved(schema: Schema, root: Schema) -> Schema:
    """What `$ref` points to; a schema of which nothing is known where it points nowhere."""
    seen = 0
    while isinstance(schema, Mapping) and "$ref" in schema and seen < _MAX_DEPTH:
        target: Any = root
        path = str(schema["$ref"])
        if not path.startswith("#") or schema.keys() - _NOTES - {"$ref"}:
            return _UNKNOWN
        for part in path.removeprefix("#").split("/")[1:]:
            target = target.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(target, Mapping) else None
        if not isinstance(target, Mapping | bool):
            return _UNKNOWN
        schema, seen = target, seen + 1
    return schema if seen < _MAX_DEPTH else _UNKNOWN


def _values(schema: Mapping[str, Any]) -> list[Any] | None:
    """The values that a schema lists; None where it lists none. True is not 1, so they are compared as JSON."""
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    return None if listed is None else [json.dumps(value, sort_keys=True) for value in listed]


def _types(schema: Mapping[str, Any]) -> set[str] | None:
    named = schema.get("type")
    if named is None and (values := _values(schema)) is not None:
        return {_type_of(json.loads(value)) for value in values}
    return None if named is None else {named} if isinstance(named, str) else set(named)


def _type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def _types_within(own: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    allowed = _types(wanted)
    if allowed is None:
        return True
    given = _types(own)
    if given is None:
        return False
    return all(kind in allowed or (kind == "integer" and "number" in allowed) for kind in given)


def _bounds_within(own: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    least = all(name not in wanted or own.get(name, float("-inf")) >= wanted[name] for name in _LEAST)
    most = all(name not in wanted or own.get(name, float("inf")) <= wanted[name] for name in _MOST)
    return least and most and all(name not in wanted or own.get(name) == wanted[name] for name in _EQUAL)
