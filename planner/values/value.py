"""What a column or a parameter can hold: a text, a number, a bool, none, a list or a record."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn, Union

Value = Union[str, int, float, bool, None, "tuple[Value, ...]", "Mapping[str, Value]"]

# A number as people and programs write it; Python's own functions take more, such as `1_000` and other scripts' digits.
NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")


class Record(dict[str, Value]):
    """A record: a dictionary that stays as it is, and so can be a key of another one. Equal fields make equal records.

    JSON takes it for an object. Lists and records in it must be tuples and records themselves (see `frozen`).
    """

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[type[Record], tuple[dict[str, Value]]]:
        return Record, (dict(self),)

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("a record is not changed")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse


def frozen(value: Any) -> Value:
    """A value of JSON as one of the language: lists become tuples, objects become records."""
    if isinstance(value, dict):
        return Record({str(name): frozen(part) for name, part in value.items()})
    return tuple(map(frozen, value)) if isinstance(value, list | tuple) else value


def thawed(value: Value) -> Any:
    """A value as Python and JSON have it: tuples become lists, records become dictionaries."""
    if isinstance(value, Mapping):
        return {name: thawed(part) for name, part in value.items()}
    return [thawed(part) for part in value] if isinstance(value, tuple) else value


def format_value(value: Value) -> str:
    """A value as it stands in an interpolated string: a list or a record as JSON."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple | Mapping):
        return json.dumps(thawed(value), ensure_ascii=False)
    return "none" if value is None else str(value)


def value_at(value: Value, steps: tuple[str | int, ...]) -> Value:
    """What stands in a value at a path of fields and of places in lists, where -1 is the last; else none."""
    for step in steps:
        if isinstance(step, str):
            value = value.get(step) if isinstance(value, Mapping) else None
        else:
            value = value[step] if isinstance(value, tuple) and -len(value) <= step < len(value) else None
    return value
