"""Which schemas a program's records are seen to satisfy."""

from __future__ import annotations

import json
from typing import Any

import pytest

from qpdsl.serve.completion_request import Refusal
from qpdsl.serve.record_format import read_format, satisfies

OWN: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "day": {"enum": ["Mon", "Tue"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "email": {"type": "string"},
    },
    "required": ["name", "age", "day", "tags"],
    "additionalProperties": False,
}


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties]}


@pytest.mark.parametrize(
    "wanted",
    [
        OWN,
        True,
        {},
        {"type": "object"},
        {"type": ["object", "null"]},
        of(name={"type": "string"}),
        of(name={"type": "string", "maxLength": 50, "title": "Name"}),
        of(age={"type": "number", "minimum": 0}),
        of(age={"anyOf": [{"type": "null"}, {"type": "integer"}]}),
        of(day={"type": "string"}),
        of(day={"enum": ["Mon", "Tue", "Wed"]}),
        of(tags={"type": "array"}),
        {"$ref": "#/$defs/P", "$defs": {"P": of(tags={"$ref": "#/$defs/T"}), "T": {"type": "array", "items": {}}}},
        {"type": "object", "properties": {"other": {"type": "string"}}},
        {"type": "object", "additionalProperties": {"type": ["string", "integer", "array"]}},
    ],
)
def test_satisfied(wanted: Any) -> None:
    assert satisfies(OWN, wanted)


@pytest.mark.parametrize(
    "wanted",
    [
        False,
        {"type": "array"},
        of(name={"type": "integer"}),
        of(name={"type": "string", "maxLength": 39}),
        of(name={"type": "string", "pattern": "A.*"}),
        of(age={"type": "integer", "maximum": 100}),
        of(age={"type": "integer", "exclusiveMinimum": 0}),
        of(day={"enum": ["Mon"]}),
        of(tags={"type": "array", "items": {"type": "integer"}}),
        of(tags={"type": "array", "maxItems": 3}),
        of(email={"type": "string"}),
        of(other={"type": "string"}),
        {"type": "object", "properties": {"name": {"type": "string"}}, "additionalProperties": False},
        {"not": {}},
        {"$ref": "#/$defs/none"},
        {"$ref": "#"},
        {"type": "object", "properties": []},
        {"type": "object", "required": 3},
        of(age={"minimum": "x"}),
    ],
)
def test_not_satisfied(wanted: Any) -> None:
    assert not satisfies(OWN, wanted)


def test_true_is_not_one() -> None:
    assert not satisfies({"const": True}, {"const": 1})
    assert not satisfies({"const": True}, {"type": "integer"})


def test_fields_that_may_be_missing_are_filled_with_null_where_a_schema_wants_them() -> None:
    wanted = of(name={"type": "string"}, email={"anyOf": [{"type": "string"}, {"type": "null"}]})
    assert not satisfies(OWN, wanted) and satisfies(OWN, wanted, fills=True)
    schema = {"type": "json_schema", "json_schema": {"name": "p", "schema": wanted}}
    form = read_format(schema, "p", json.dumps(OWN))
    assert form is not None
    assert json.loads(form.filled('{"name": "Ann", "age": 3}')) == {"name": "Ann", "age": 3, "email": None}
    assert json.loads(form.filled('{"name": "Ann", "email": "a@b"}')) == {"name": "Ann", "email": "a@b"}
    nested = {"type": "json_schema", "json_schema": {"name": "p", "schema": {"type": "array", "items": wanted}}}
    listed = read_format(nested, "p", json.dumps({"type": "array", "items": OWN}))
    assert listed is not None and json.loads(listed.filled('[{"name": "A"}]')) == [{"name": "A", "email": None}]


@pytest.mark.parametrize(
    "asked", ["json", {}, {"type": "xml"}, {"type": "json_schema"}, {"type": "json_schema", "json_schema": {}}]
)
def test_what_is_no_format(asked: Any) -> None:
    with pytest.raises(Refusal) as refused:
        read_format(asked, "p", json.dumps(OWN))
    assert refused.value.param == "response_format" and refused.value.status == 400
