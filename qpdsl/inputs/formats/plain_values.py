"""What typed tables hold, as JSON values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any


class NoPlainValue(ValueError):
    """What JSON has no value for: bytes, an image, a sound."""


def plain_fields(record: Mapping[str, Any], left_out: set[str]) -> dict[str, Any]:
    """The fields of a record that have a value. Those that have none in JSON are named in `left_out` instead."""
    fields = {}
    for name, value in record.items():
        try:
            plain = _plain(value)
        except NoPlainValue:
            left_out.add(name)
            continue
        if plain is not None:
            fields[name] = plain
    return fields


def _plain(value: Any) -> Any:
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case list() | tuple():
            return [_plain(part) for part in value]
        case Mapping():
            # A struct has every field of its type, so that those a record lacks are nulls.
            parts = {str(name): _plain(part) for name, part in value.items()}
            return {name: part for name, part in parts.items() if part is not None}
        case datetime() | date() | time():
            return value.isoformat()
        case Decimal():
            return str(value)
    raise NoPlainValue
