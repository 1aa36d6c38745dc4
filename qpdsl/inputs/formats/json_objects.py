"""JSON, read strictly: no field twice, no NaN, no number that nothing can hold."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from qpdsl.errors import shorten


def json_value(text: str) -> Any:
    """The value that a text holds. Raises ValueError with what is wrong with it."""
    try:
        return json.loads(text, parse_int=_whole, parse_constant=_no_constant, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        raise ValueError(
            f"broken JSON at {line}column {error.colno}: {error.msg[:1].lower()}{error.msg[1:]}"
        ) from error
    except RecursionError as error:
        raise ValueError("the JSON is nested too deep") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object from its fields. Of two with one name JSON readers drop either, in silence."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"the field `{shorten(twice)}` stands twice in one object")
    return fields


def _no_constant(word: str) -> None:
    raise ValueError(f"broken JSON: `{word}` is no JSON value")


def _whole(digits: str) -> int:
    try:
        return int(digits)
    except ValueError:
        raise ValueError(f"a number of {len(digits.lstrip('-')):,} digits is too long") from None
