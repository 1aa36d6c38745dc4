"""Schemas as the JSON Schema that llguidance is given."""

from __future__ import annotations

import json

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
