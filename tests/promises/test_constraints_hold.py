"""What a constraint lets through is what it says: by the program's own regexes, and by the schema itself."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest

from qpdsl.executor.runtime.operators.valid_records import fault_of
from qpdsl.grammar.literals.constraint_regex import anywhere, whole
from qpdsl.grammar.literals.matcher import matcher
from qpdsl.grammar.literals.regex import whole_text
from qpdsl.planner.names.constraint_schema import as_constraint
from qpdsl.planner.names.json_schema import FORMATS, faults, to_text
from tests.support.executor.byte_walks import Constraint
from tests.support.executor.programs import compiled
from tests.support.executor.scripted_engine import ALL_CAPABILITIES, result_of
from tests.support.grammar import random_patterns

# In a longer text, some patterns here keep Python's own engine busy for hours.
PYTHON_CAN = 10
UNREAD = re.compile("the exponent of .* is too large")


def holding(kind: str, source: str) -> Constraint | None:
    """The constraint, None where nothing satisfies it."""
    try:
        return Constraint(kind, source)
    except ValueError:
        return None


def test_a_text_held_to_a_regex_matches_it_whole() -> None:
    chance = random.Random(1)
    walked = 0
    for _ in range(60):
        pattern = random_patterns.pattern(chance)
        constraint = holding("regex", whole(pattern))
        if constraint is None:
            continue
        for text in (constraint.walk(chance, 40) for _ in range(4)):
            if text is not None:
                walked += 1
                assert matcher(whole_text(pattern)).matches(text), (pattern, text)
                assert len(text) > PYTHON_CAN or re.fullmatch(pattern, text), (pattern, text)
        for text in (random_patterns.text(chance) for _ in range(10)):
            assert constraint.takes(text) == (re.fullmatch(pattern, text) is not None), (pattern, text)
    assert walked > 200


def test_a_field_held_to_a_pattern_has_a_match() -> None:
    chance = random.Random(2)
    walked = 0
    for _ in range(50):
        pattern = random_patterns.pattern(chance)
        constraint = holding("json_schema", json.dumps({"type": "string", "pattern": anywhere(pattern)}))
        if constraint is None:
            continue
        for text in (constraint.walk(chance, 40) for _ in range(4)):
            if text is not None:
                walked += 1
                value = json.loads(text)
                assert matcher(pattern).matches(value), (pattern, text)
                assert len(value) > PYTHON_CAN or re.search(pattern, value), (pattern, text)
        for text in (random_patterns.text(chance) for _ in range(10)):
            if constraint.takes(json.dumps(text, ensure_ascii=False)):
                assert re.search(pattern, text), (pattern, text)
    assert walked > 25


def number(chance: random.Random) -> float:
    edges = [0, 1, -1, 7.5, 0.1, -2.25, 1e-7, 2**53 - 1, 2**53, 2**53 + 1, 2**63, -(2**64), 1e16, 1e19, 10**24]
    kind = chance.random()
    if kind < 0.5:
        return chance.choice(edges)
    return chance.randrange(-60, 60) if kind < 0.75 else round(chance.uniform(-100, 100), chance.randrange(7))


BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


def leaf(chance: random.Random) -> Any:
    kind = chance.random()
    if kind < 0.45:
        schema: dict[str, Any] = {"type": chance.choice(["integer", "integer", "number", ["number", "null"]])}
        schema |= {key: number(chance) for key in chance.sample(BOUNDS, chance.randrange(3))}
        return schema | ({"multipleOf": chance.choice([1, 3, 0.5, 0.01, 2.5])} if chance.random() < 0.2 else {})
    if kind < 0.8:
        schema = {"type": "string"}
        if chance.random() < 0.4:
            schema["pattern"] = random_patterns.pattern(chance)
        if chance.random() < 0.4:
            schema["format"] = chance.choice(FORMATS)
        if chance.random() < 0.4:
            schema |= {"minLength": chance.randrange(3), "maxLength": chance.randrange(3, 40)}
        return schema
    choices = [{"enum": [1, 1.5, "a", None, True, [1], {"a": 1}]}, {"const": number(chance)}, {"type": "boolean"}, True]
    return chance.choice(choices)


def schema(chance: random.Random, depth: int) -> Any:
    kind = chance.random()
    if depth == 0 or kind < 0.45:
        return leaf(chance)
    if kind < 0.7:
        names = chance.sample(["a", "b", 'é"', "c d"], chance.randrange(4))
        fields = {name: schema(chance, depth - 1) for name in names}
        record: dict[str, Any] = {"type": "object", "properties": fields}
        record["required"] = [name for name in fields if chance.random() < 0.6]
        record["additionalProperties"] = chance.choice([False, schema(chance, depth - 1)])
        if chance.random() < 0.2:
            record["patternProperties"] = {random_patterns.pattern(chance): schema(chance, depth - 1)}
        return record
    if kind < 0.88:
        items: dict[str, Any] = {"type": "array", "items": schema(chance, depth - 1)}
        if chance.random() < 0.3:
            items["prefixItems"] = [schema(chance, depth - 1)]
        return items | {"minItems": chance.randrange(2), "maxItems": chance.randrange(1, 4)}
    return {chance.choice(["anyOf", "allOf"]): [schema(chance, depth - 1) for _ in range(chance.randrange(1, 3))]}


def test_a_record_held_to_a_schema_is_valid() -> None:
    chance = random.Random(3)
    walked = 0
    for _ in range(120):
        document = schema(chance, 2)
        if next(faults(document), None) is not None:
            continue
        constraint = holding("json_schema", to_text(as_constraint(document)))
        for text in (constraint.walk(chance) for _ in range(4) if constraint is not None):
            if text is not None:
                walked += 1
                fault = fault_of(text, to_text(document))
                # Random digits make numbers that nobody reads: they are refused, not taken for valid.
                assert fault is None or UNREAD.fullmatch(fault), (document, text)
    assert walked > 200


@pytest.mark.parametrize("format", ["date", "time", "date-time", "hostname", "ipv4", "ipv6", "uuid"])
def test_a_text_of_a_format_is_one(format: str) -> None:
    chance = random.Random(4)
    document = {"type": "string", "format": format}
    constraint = Constraint("json_schema", to_text(as_constraint(document)))
    walked = [text for _ in range(60) if (text := constraint.walk(chance)) is not None]
    assert len(walked) > 20
    assert [text for text in walked if fault_of(text, to_text(document)) is not None] == []


RECORDS = """model llm = "remote"
schema Age { age: int(0..150), born: text(format="date") }
program p(problem: text) -> Age {
  chat user=problem
  generate llm n=2 as Age into record temperature=0.8
  extract age = .age
  vote age
  return text
}"""


@pytest.mark.parametrize(
    ("written", "fault"),
    [
        ('{"age": 151, "born": "2024-02-29"}', "at `/age`: 151 is over the maximum 150"),
        ('{"age": 15, "born": "2023-02-29"}', 'at `/born`: "2023-02-29" is no date'),
        ('{"age": 15', "no JSON"),
        ('{"age": 15, "born": "2024-02-29"}', None),
    ],
)
def test_a_record_that_should_not_have_come_is_not_taken_for_valid(written: str, fault: str | None) -> None:
    # The engine here leaves masks alone, as a constraint with a fault would.
    voted, returned = (
        result_of(compiled(text), lambda prompt, key: written, ALL_CAPABILITIES)[0]
        for text in (RECORDS, RECORDS.replace("  vote age\n", ""))
    )
    if fault is None:
        assert voted.value == returned.value == json.loads(written)
        return
    assert (voted.value, returned.value) == (None, None)
    assert [row.columns["record"] for row in returned.rows] == [None, None]
    assert voted.error is not None and "is none in each row" in voted.error
    assert returned.error is not None
    assert returned.error.startswith("the record breaks its schema, though llguidance let it through: ")
    assert fault in returned.error
