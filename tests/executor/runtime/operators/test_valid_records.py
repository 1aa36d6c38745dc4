"""Which JSON texts are valid under a schema, by the check of its own that every record goes through."""

from __future__ import annotations

import json
from typing import Any

import pytest

from qpdsl.executor.runtime.operators.valid_records import fault_of

LIST: dict[str, Any] = {"$ref": "#/$defs/list", "$defs": {"list": {"type": "array", "items": {"$ref": "#/$defs/list"}}}}
PERCENT: dict[str, Any] = {
    "$defs": {"a b/c": {"type": "integer", "maximum": 9}},
    "properties": {"a": {"$ref": "#/$defs/a%20b~1c"}},
}
ROOTED: dict[str, Any] = {
    "$id": "http://x.org/root.json",
    "$defs": {"q": {"maximum": 9}},
    "$ref": "http://x.org/root.json#/$defs/q",
}
RECORD: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
    "required": ["a"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("schema", "valid", "faulty"),
    [
        ({"minimum": 10**19, "maximum": 10**19 + 5}, ["10000000000000000001"], ["9223372036854775807"]),
        ({"type": "integer"}, ["1.0", "-3", "1e2"], ["1.5", "true", '"1"', "null"]),
        ({"type": "number"}, ["1e300"], ["1e57417934000000000000", "-1e-57417934000000000000"]),
        ({"exclusiveMinimum": 0.1, "exclusiveMaximum": 0.3}, ["0.2", "0.29999"], ["0.1", "0.10", "0.30"]),
        ({"type": "number", "multipleOf": 0.01}, ["610.56", "0.1"], ["0.001", "1e-3"]),
        ({"type": ["integer", "null"], "minimum": 3}, ["3", "null"], ["2", "true"]),
        ({"enum": [1, True, "a", [1, {"b": None}]]}, ["1.0", "true", '[1,{"b":null}]'], ["0", "false", '[1,{"b":0}]']),
        ({"const": False}, ["false"], ["0"]),
        ({"type": "string", "minLength": 2, "maxLength": 3}, ['"\\ud83d\\ude00x"', '"abc"'], ['"a"', '"abcd"']),
        ({"type": "string", "pattern": r"^\w{2}$"}, ['"é1"'], ['"\\u1036H"', '"a"']),
        ({"prefixItems": [{"type": "null"}], "items": False}, ["[]", "[null]"], ["[1]", "[null,null]"]),
        ({"type": "array", "minItems": 1, "maxItems": 2}, ["[1]"], ["[]", "[1,2,3]"]),
        ({"minProperties": 1, "maxProperties": 1}, ['{"a":1}', "3"], ["{}", '{"a":1,"b":1}']),
        (RECORD, ['{"a":1}', '{"a":1,"b":"x"}'], ["{}", '{"a":1,"c":1}', '{"a":"1"}', '{"a":1,"a":2}']),
        ({"patternProperties": {"^x": {"type": "null"}}}, ['{"x1":null,"y":1}'], ['{"x1":1}']),
        ({"anyOf": [{"type": "null"}, {"minimum": 3}]}, ["null", "4"], ["2"]),
        ({"oneOf": [{"type": "null"}, {"minimum": 3}, {"minimum": 5}]}, ["4"], ["2", "6", "null"]),
        (PERCENT, ['{"a":3}'], ['{"a":10}', '{"a":"3"}']),
        ({"prefixItems": [{"type": "null"}, {"$ref": "#/prefixItems/0"}]}, ["[null,null]"], ["[null,1]"]),
        ({"anyOf": [{"type": "null"}, {"items": {"$ref": "#/anyOf/0"}}]}, ["[null]"], ["[1]"]),
        (ROOTED, ["9"], ["10"]),
        ({"allOf": [{"minimum": 1}, {"maximum": 3}]}, ["2"], ["0", "4"]),
        (LIST, ["[[],[[]]]"], ["[[1]]"]),
        ({"type": "string", "format": "date"}, ['"2024-02-29"'], ['"2023-02-29"', '"0000-01-01"', '"2024-2-9"']),
        ({"type": "string", "format": "time"}, ['"23:59:59.25Z"', '"00:00:00+23:59"'], ['"23:59:60Z"', '"24:00:00Z"']),
        ({"format": "date-time"}, ['"2024-02-29T00:00:00Z"'], ['"2024-02-29 00:00:00Z"', '"2024-02-29"']),
        ({"type": "string", "format": "ipv4"}, ['"1.2.3.4"'], ['"1.2.3"', '"1.2.3.256"']),
        ({"type": "string", "format": "ipv6"}, ['"::1"'], ['"::g"']),
        ({"type": "string", "format": "uuid"}, ['"a34E35ee-d3c7-38B3-92F6-A8bB9B9A55e8"'], ['"a34E35ee"']),
        (True, ["1"], ["nope", "NaN", "[1e999x]", "1" * 5000, "[" * 100_000]),
        (False, [], ["1"]),
    ],
)
def test_what_is_valid(schema: Any, valid: list[str], faulty: list[str]) -> None:
    source = json.dumps(schema)
    assert [text for text in valid if fault_of(text, source) is not None] == []
    assert [text for text in faulty if fault_of(text, source) is None] == []


def test_a_fault_says_where_it_is() -> None:
    schema = {"properties": {"items": {"items": {"properties": {"count": {"maximum": 9}}}}}}
    fault = fault_of('{"items": [{"count": 3}, {"count": 12}]}', json.dumps(schema))
    assert fault == "at `/items/1/count`: 12 is over the maximum 9"
