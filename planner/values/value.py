"""What a column or a parameter can hold: a text, a number, a bool, none, a list or a record.

Types as words: `text`, `[int]` for a list, `{name: text}` for a record, and which type fits where.

A type is a string that reads as the language writes it. `record` is a record of fields that are not known; `unknown`
stands where there is an error, or where anything may come, and fits anywhere.

Values of a program's columns, written out: as JSON, and as text for people.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NoReturn, Union

from qpdsl.grammar.words import NUMBERS, Type

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


def list_of(item: Type) -> Type:
    """The type of a list of such values."""
    return f"[{item}]"


def record_of(fields: Mapping[str, Type]) -> Type:
    """The type of a record of such fields: `record` where one has a name that the language cannot write."""
    if not all(name.isidentifier() and name.isascii() for name in fields):
        return "record"
    return "{" + ", ".join(f"{name}: {type_}" for name, type_ in fields.items()) + "}"


def is_list(type_: Type) -> bool:
    return type_.startswith("[")


def is_record(type_: Type) -> bool:
    return type_ == "record" or type_.startswith("{")


def item_of(type_: Type) -> Type:
    """The type of what a list holds; "unknown" for the type of anything else."""
    return type_[1:-1] if is_list(type_) else "unknown"


def fields_of(type_: Type) -> dict[str, Type] | None:
    """The types of a record's fields; None where they are not known."""
    if not type_.startswith("{"):
        return None
    return {name: field for name, _, field in (part.partition(": ") for part in _parts(type_[1:-1]))}


def type_at(type_: Type, step: str | int) -> Type | None:
    """The type of a field, or of what a list holds; None where a value of `type_` has no such part."""
    if type_ in ("unknown", "none"):
        return "unknown"
    if isinstance(step, int):
        return item_of(type_) if is_list(type_) else None
    if type_ == "record":
        return "unknown"
    fields = fields_of(type_)
    return None if fields is None else fields.get(step)


def fits(actual: Type, wanted: Collection[str] | str) -> bool:
    """Whether a value of one type can stand where one of others is wanted: an int is a float too.

    A list fits where its items do, and a record where each field does. `[unknown]` among the wanted takes any list.
    """
    choices = (wanted,) if isinstance(wanted, str) else wanted
    return actual == "unknown" or any(_fits(actual, one) for one in choices)


def _fits(actual: Type, wanted: Type) -> bool:
    if actual in (wanted, "unknown") or wanted == "unknown" or (actual == "int" and wanted == "float"):
        return True
    if is_list(actual) and is_list(wanted):
        return _fits(item_of(actual), item_of(wanted))
    if not (is_record(actual) and is_record(wanted)):
        return False
    have, want = fields_of(actual), fields_of(wanted)
    if have is None or want is None:
        return True
    return have.keys() == want.keys() and all(_fits(have[name], want[name]) for name in want)


def common_type(left: Type, right: Type) -> Type | None:
    """The type of a value that is of one type or of the other; None where there is no such type."""
    if left == right or right == "none":
        return left
    if left == "none":
        return right
    if "unknown" in (left, right):
        return "unknown"
    if {left, right} <= NUMBERS:
        return "float"
    if is_list(left) and is_list(right):
        item = common_type(item_of(left), item_of(right))
        return None if item is None else list_of(item)
    if is_record(left) and is_record(right):
        return _common_record(fields_of(left), fields_of(right))
    return None


def common_of(types: Iterable[Type]) -> Type | None:
    """The common type of several; "unknown" of none, None where there is no common one."""
    result: Type | None = None
    for type_ in types:
        result = type_ if result is None else common_type(result, type_)
        if result is None:
            return None
    return "unknown" if result is None else result


def _common_record(left: Mapping[str, Type] | None, right: Mapping[str, Type] | None) -> Type | None:
    if left is None or right is None or left.keys() != right.keys():
        return "record"
    # The same whichever comes first, also where their fields stand in another order.
    names = list(left) if list(left) == list(right) else sorted(left)
    fields = {name: common_type(left[name], right[name]) for name in names}
    known = {name: type_ for name, type_ in fields.items() if type_ is not None}
    return record_of(known) if len(known) == len(fields) else "record"


def _parts(text: str) -> Iterator[str]:
    """The fields of a record's type, parted by the commas outside of inner brackets."""
    depth = start = 0
    for index, char in enumerate(text):
        depth += (char in "[{") - (char in "]}")
        if char == "," and not depth:
            yield text[start:index]
            start = index + 2
    if text:
        yield text[start:]


def holds(type_: Type, value: Value) -> bool:
    """Whether a value is of a type: none is of every type, and an int is a float too."""
    if value is None or type_ == "unknown":
        return True
    if isinstance(value, bool):
        return type_ == "bool"
    if isinstance(value, int):
        return type_ in NUMBERS
    if isinstance(value, float):
        return type_ == "float"
    if isinstance(value, str):
        return type_ == "text"
    if isinstance(value, tuple):
        return is_list(type_) and all(holds(item_of(type_), item) for item in value)
    fields = fields_of(type_)
    if fields is None:
        return type_ == "record"
    return all(name in fields and holds(fields[name], part) for name, part in value.items())


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
