"""Schemas as the JSON Schema that llguidance is given."""

from __future__ import annotations

import json
import re

import pytest

from qpdsl.planner.names.constraint_schema import as_constraint
from qpdsl.planner.names.constraints import refusal
from qpdsl.planner.names.json_schema import FORMATS, faults, notes, value_type
from qpdsl.planner.plan import ops
from tests.support.planner.lowered import chain, program_of

ORDER = """
model llm = "m"
schema Item { name: text, price: float }
schema Order { id: int, items: [Item], paid: bool, note: text? }
program p(q: text) -> Order {
  chat user=q
  generate llm as Order
}
"""


def test_json_schema_of_a_schema() -> None:
    program = program_of(ORDER)
    generate = chain(program)[1]
    assert isinstance(generate, ops.Generate) and generate.constraint is not None
    assert (generate.constraint.kind, generate.constraint.name) == ("json_schema", "Order")
    item = {"name": {"type": "string"}, "price": {"type": "number"}}
    assert json.loads(generate.constraint.source) == {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "items": {"type": "array", "items": {"$ref": "#/$defs/Item"}},
            "paid": {"type": "boolean"},
            "note": {"type": "string"},
        },
        "required": ["id", "items", "paid"],
        "additionalProperties": False,
        "$defs": {
            "Item": {
                "type": "object",
                "properties": item,
                "required": ["name", "price"],
                "additionalProperties": False,
            }
        },
    }


def test_formats_are_those_of_llguidance() -> None:
    for format in FORMATS:
        assert refusal("json_schema", json.dumps({"type": "string", "format": format})) is None


def test_llguidance_is_given_its_own_wording_and_the_schema_stays() -> None:
    program = program_of(ORDER.replace("id: int", r"id: text(pattern=/^a|\d$/)"))
    generate = chain(program)[1]
    assert isinstance(generate, ops.Generate) and generate.constraint is not None
    written = json.loads(generate.constraint.schema)["properties"]["id"]["pattern"]
    given = json.loads(generate.constraint.source)["properties"]["id"]["pattern"]
    assert written == r"^(?:^a|\d$)$"
    assert "\\d" not in given and re.fullmatch(given, "7") and re.fullmatch(given, "a")
    assert not re.fullmatch(given, "a7")


def test_a_format_beside_a_pattern_keeps_both() -> None:
    schema = {"type": "string", "format": "time", "pattern": "^1", "allOf": [{"maxLength": 9}]}
    given = as_constraint({"items": schema})["items"]
    assert given["pattern"] != schema["pattern"] and "format" not in given
    assert given["allOf"][0] == {"maxLength": 9} and len(given["allOf"]) == 2


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        ({"type": "integer", "minimun": 1}, "`minimun` is not supported; did you mean `minimum`?"),
        ({"type": "string", "MaxLength": 1}, "`MaxLength` is not supported; did you mean `maxLength`?"),
        ({"dependencies": {"a": ["b"]}}, "`dependencies` is not supported"),
        (
            {"items": {"id": "other", "$ref": "#/$defs/a"}, "$defs": {"a": {"type": "null"}}},
            "`id` would change where references lead",
        ),
        ({"format": "int32"}, '`format` stands beside `"type": "string"`'),
        ({"x-guidance": {"lenient": True}}, '`x-guidance` takes `{"whitespace_flexible": true}`, or false'),
        ({"items": {"x-guidance": {"whitespace_flexible": True}}}, "`x-guidance` stands at the top of a schema"),
    ],
)
def test_what_may_be_meant_to_constrain_is_refused(schema: dict[str, object], fault: str) -> None:
    assert [why for _, why in faults(schema)] == [fault]


def test_words_of_the_author_are_notes_and_go_no_further() -> None:
    schema = {
        "id": "https://example.org/a",
        "type": "object",
        "unit": "mm",
        "properties": {"unit": {"type": "integer", "format": "int64", "x-of": 3, "_format": "date"}},
        "x-guidance": {"whitespace_flexible": True},
    }
    assert [*faults(schema)] == []
    assert [*notes(schema)] == [("the schema", "unit"), ("/properties/unit", "format")]
    assert as_constraint(schema) == {
        "type": "object",
        "properties": {"unit": {"type": "integer"}},
        "x-guidance": {"whitespace_flexible": True, "item_separator": ",", "key_separator": ":"},
    }


@pytest.mark.parametrize(
    ("reference", "fault"),
    [
        ("#/$defs/b", "leads to nothing"),
        ("#/$defs/list/anyOf/2", "leads to nothing"),
        ("#/$defs/list/anyOf/01", "leads to nothing"),
        ("#anchor", "is no JSON Pointer"),
        ("http://x.org/other.json#/$defs/a", "leads to another document"),
        ("#/notes/a", "leads to what is no schema"),
        (7, "takes a text"),
    ],
)
def test_a_reference_that_leads_to_no_schema_is_refused(reference: object, fault: str) -> None:
    listed = {"anyOf": [{"type": "null"}, {"type": "integer"}]}
    document = {"$defs": {"a": {"type": "null"}, "list": listed}, "notes": {"a": {}}, "items": {"$ref": reference}}
    ((where, why),) = faults(document)
    assert where == "/items" and fault in why


@pytest.mark.parametrize(
    "document",
    [
        {"$ref": "#"},
        {"anyOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"oneOf": [{"type": "null"}, {"$ref": "#"}]}}},
        {"properties": {"p": {"$ref": "#/$defs/p"}}, "$defs": {"p": {"allOf": [{"$ref": "#/$defs/p"}]}}},
    ],
)
def test_a_reference_that_leads_back_to_itself_is_refused(document: dict[str, object]) -> None:
    assert [why for _, why in faults(document)] == ["`$ref` leads back to itself with nothing between"]
    within = {"properties": {"more": {"$ref": "#"}}}
    assert not list(faults(within))


def test_references_lead_where_json_pointer_says() -> None:
    fields = {
        "plain": {"$ref": "#/$defs/a"},
        "percent": {"$ref": "#/$defs/a%20b~1c"},
        "listed": {"$ref": "#/$defs/list/anyOf/1"},
        "rooted": {"$ref": "http://x.org/root.json#/$defs/a"},
    }
    document = {
        "$id": "http://x.org/root.json",
        "type": "object",
        "properties": fields,
        "additionalProperties": False,
        "$defs": {
            "a": {"type": "string"},
            "a b/c": {"type": "boolean"},
            "list": {"anyOf": [{"type": "null"}, {"type": "integer"}]},
        },
    }
    assert list(faults(document)) == []
    assert value_type(document) == "{plain: text, percent: bool, listed: int, rooted: text}"


def test_a_type_takes_time_by_the_size_of_its_schema() -> None:
    """Three references a level, which are 3^40 fields when written out."""
    level = {"type": "object", "additionalProperties": False}
    levels = {
        str(depth): {**level, "properties": {name: {"$ref": f"#/$defs/{depth + 1}"} for name in "abc"}}
        for depth in range(40)
    }
    tree = {**level, "properties": {"left": {"$ref": "#/$defs/tree"}, "right": {"$ref": "#/$defs/tree"}}}
    document = {"$ref": "#/$defs/0", "$defs": {**levels, "40": {"type": "integer"}, "tree": tree}}
    assert value_type(document).startswith("{a: ")
    assert value_type({**document, "$ref": "#/$defs/tree"}) == "{left: unknown, right: unknown}"
    assert value_type({**document, "$ref": "#/$defs/39"}) == "{a: int, b: int, c: int}"
