"""Schemas as the JSON Schema that llguidance is given."""

from __future__ import annotations

import json
import re

from qpdsl.planner.names.constraint_schema import as_constraint
from qpdsl.planner.names.constraints import refusal
from qpdsl.planner.names.json_schema import FORMATS
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
    generate = chain(program)[2]
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
    generate = chain(program)[2]
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
