"""Values of a program's columns, written out: as JSON, and as text for people."""

from __future__ import annotations

import json
import math
from typing import Any

from qpdsl.planner.values.value import format_value

# Numbers are rounded as scores are, so that no digit depends on the batch.
_DIGITS = 5


def plain(value: Any) -> Any:
    """A value that JSON can carry, its numbers rounded."""
    match value:
        case float():
            return round(value, _DIGITS) if math.isfinite(value) else str(value)
        case dict():
            return {name: plain(part) for name, part in value.items()}
        case list() | tuple():
            return [plain(part) for part in value]
    return value


def shown(value: Any) -> str:
    """A value for people: text as it is, a record as JSON."""
    value = plain(value)
    return dumps(value) if isinstance(value, dict | list) else format_value(value)


def dumps(record: object) -> str:
    """One line of JSON, without the newline."""
    return json.dumps(record, ensure_ascii=False, allow_nan=False)
