"""Notes on people and orders, the schemas of their records, and what is a record.

This loads nothing but the standard library.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

_PERSON: Mapping[str, Any] = MappingProxyType(
    {
        "full_name": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "city_of_residence": {"type": "string", "maxLength": 30},
        "occupation": {"type": "string", "maxLength": 30},
        "marital_status": {"enum": ["single", "married", "divorced", "widowed"]},
        "years_of_experience": {"type": "integer", "minimum": 0, "maximum": 60},
        "languages": {"type": "array", "items": {"type": "string", "maxLength": 20}, "minItems": 1, "maxItems": 3},
    }
)
_ORDER: Mapping[str, Any] = MappingProxyType(
    {
        "order_number": {"type": "integer", "minimum": 1000, "maximum": 9999},
        "customer_name": {"type": "string", "maxLength": 30},
        "product_name": {"type": "string", "maxLength": 30},
        "quantity": {"type": "integer", "minimum": 1, "maximum": 100},
        "shipping_method": {"enum": ["standard", "express", "pickup"]},
        "delivery_city": {"type": "string", "maxLength": 30},
        "delivery_days": {"type": "integer", "minimum": 1, "maximum": 30},
        "gift_options": {"type": "array", "items": {"type": "string", "maxLength": 20}, "minItems": 1, "maxItems": 2},
    }
)
_PEOPLE = (
    "Maria Lopez is 34 and lives in Lisbon. She is married, has been a nurse for 11 years and speaks Spanish and "
    "Portuguese.",
    "In Oslo we met Jonas Berg, a carpenter of 51 with 30 years in the trade. He is divorced. Languages: Norwegian, "
    "English.",
    "Aiko Tanaka, 28, single, works as a software engineer in Osaka, four years so far. She speaks Japanese.",
    "Samuel Okafor from Lagos turned 67 this spring. A widowed teacher with 40 years of experience, he speaks Igbo and "
    "English.",
    "The new cook is Elena Petrova: 45, married, 20 years of experience, at home in Sofia. She speaks Bulgarian and "
    "Greek.",
    "Liam Murphy is a bus driver in Cork. He is 39, single, has driven for 15 years and speaks English and Irish.",
    "Fatima Haddad, a pharmacist of 31, lives in Tunis with her husband. Six years of experience; Arabic and French.",
    "Anton Weber is 58 and has sold books in Vienna for 33 years. He is married and speaks German and Italian.",
)
_ORDERS = (
    "Order 4821: Grace Kim wants 3 desk lamps sent to Seattle by express within 2 days, as a gift, with a card.",
    "Please ship order 1377 to Madrid: 12 coffee mugs for Pablo Ruiz, standard shipping, 9 days, with gift wrap.",
    "Hannah Schmidt will pick up order 9054 in Berlin in 5 days: one garden chair, with a ribbon and a greeting card.",
    "Order 2260 for Omar Farouk in Cairo: 40 notebooks, express, 4 days. He asks for gift wrap.",
    "Order 7719: Chloe Martin, Lyon, 2 winter coats, standard shipping, 7 days, gift wrap and a card.",
    "To Toronto goes order 3308: 6 wine glasses for Daniel Roy, express in 3 days, with a gift box.",
    "Order 6412 is for pickup in Warsaw in 1 day: 5 bicycle helmets, Zofia Nowak, with a ribbon.",
    "Ines Costa ordered 15 flower pots for Porto, order 5593, standard, 10 days, with a greeting card.",
)
# As `json.dumps` writes it: what qpdsl takes by default, here said to all that ask llguidance.
_SPACING = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}


@dataclass(frozen=True)
class Task:
    """A prompt, and the JSON Schema of what is to follow it."""

    prompt: str
    schema: str


def tasks(count: int) -> list[Task]:
    """The first `count`, at most 16: a person, an order, and so on."""
    kinds = (("person", _PERSON, _PEOPLE), ("order", _ORDER, _ORDERS))
    return [
        Task(_prompt(*kinds[number % 2][:2], kinds[number % 2][2][number // 2]), _schema(kinds[number % 2][1]))
        for number in range(count)
    ]


def notes() -> list[tuple[str, str]]:
    """Sixteen pairs of a note on a person and one on an order, each pair another."""
    return [(_PEOPLE[number % 8], _ORDERS[(number + number // 8) % 8]) for number in range(16)]


def _prompt(kind: str, fields: Mapping[str, Any], note: str) -> str:
    names = ", ".join(fields)
    return f"Note: {note}\n\nThe record of the {kind} as JSON, with {names}:\n\n"


def _schema(fields: Mapping[str, Any]) -> str:
    """The order of the names is the order of the record."""
    names = {"properties": dict(fields), "required": list(fields), "additionalProperties": False}
    return json.dumps({"type": "object", **names, "x-guidance": _SPACING})


def is_record(text: str, schema: str) -> bool:
    """Whether a text is JSON that the schema allows. It knows the keywords of the schemas here, and no others."""
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return _allows(json.loads(schema), value)


def _allows(schema: Mapping[str, Any], value: object) -> bool:
    if "enum" in schema:
        return value in schema["enum"]
    match schema["type"]:
        case "string":
            return isinstance(value, str) and len(value) <= schema["maxLength"]
        case "integer":
            whole = isinstance(value, int) and not isinstance(value, bool)
            return whole and schema["minimum"] <= value <= schema["maximum"]
        case "array":
            return (
                isinstance(value, list)
                and schema["minItems"] <= len(value) <= schema["maxItems"]
                and all(_allows(schema["items"], item) for item in value)
            )
        case "object":
            fields = schema["properties"]
            return (
                isinstance(value, dict)
                and value.keys() == fields.keys()
                and all(_allows(fields[name], item) for name, item in value.items())
            )
    raise ValueError(f"no record has a {schema['type']!r}")
