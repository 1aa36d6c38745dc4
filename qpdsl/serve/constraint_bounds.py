"""How large a constraint in a request may be, so that compiling it takes a bounded time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qpdsl.serve.completion_request import Refusal

# OpenAI's bounds for structured outputs: the characters of a schema, and its values of `enum`. Those of properties and
# alternatives are smaller here than its bounds of characters would allow, as compiling takes their square.
MAX_CHARACTERS = 120_000
MAX_VALUES = 1_000
MAX_PROPERTIES = 2_000
MAX_ALTERNATIVES = 500
_ALTERNATIVES = ("anyOf", "oneOf", "allOf", "prefixItems")


def check_choices(choices: Sequence[str], field: str) -> None:
    """Raises Refusal where there are too many texts to choose from, or too long ones."""
    _check(len(choices), MAX_VALUES, "choices", field)
    check_text("all choices together", sum(map(len, choices)), field)


def check_text(what: str, characters: int, field: str) -> None:
    """Raises Refusal where a constraint is too long a text."""
    if characters > MAX_CHARACTERS:
        raise Refusal(f"{what}: {characters:,} characters are too many, up to {MAX_CHARACTERS:,} are taken", field)


def check_schema(schema: Any, field: str) -> None:
    """Raises Refusal where a JSON Schema, as a JSON value, has too many parts; `check_text` bounds its length."""
    values = properties = alternatives = 0
    inside = [schema]
    while inside:
        value = inside.pop()
        if isinstance(value, Mapping):
            values += _length(value.get("enum"), list)
            properties += _length(value.get("properties"), Mapping)
            alternatives += sum(_length(value.get(name), list) for name in _ALTERNATIVES)
            inside += value.values()
        elif isinstance(value, list):
            inside += value
    _check(values, MAX_VALUES, "values of `enum`", field)
    _check(properties, MAX_PROPERTIES, "properties", field)
    _check(alternatives, MAX_ALTERNATIVES, "alternatives (`anyOf`, `oneOf`, `allOf`)", field)


def _check(count: int, most: int, what: str, field: str) -> None:
    if count > most:
        raise Refusal(f"{count:,} {what} are too many: up to {most:,} are taken", field)


def _length(value: Any, kind: type[list[Any]] | type[Mapping[str, Any]]) -> int:
    return len(value) if isinstance(value, kind) else 0
