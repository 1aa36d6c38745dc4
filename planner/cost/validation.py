"""Reading JSON data that may be damaged: numbers, texts, and frozen records of them. What is no such thing raises
ValueError, and what is not there KeyError.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from itertools import pairwise
from typing import Any, TypeVar

# Larger and smaller than any figure that is counted or measured: products and quotients of such figures stay finite,
# and above zero.
_LARGEST = 1e30
SMALLEST = 1e-15
_MIN_PEAK = 0.999
_T = TypeVar("_T")
Read = Callable[[Any], Any]


def number(value: Any, *, positive: bool = False) -> float:
    """A finite number that is not negative, and zero or not too near to it."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LARGEST:
        raise ValueError("a number is expected")
    if value < SMALLEST and (positive or value):
        raise ValueError("a number above zero is expected")
    return value


def positive(value: Any) -> float:
    """A number above zero."""
    return number(value, positive=True)


def peak(value: Any) -> float:
    """The ratio of the largest of some figures to their mean, which only rounding takes below one."""
    if number(value) < _MIN_PEAK:
        raise ValueError("a number of at least one is expected")
    return float(value)


def count(value: Any) -> int:
    """A whole number of one or more."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _LARGEST:
        raise ValueError("a whole number is expected")
    return value


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a text is expected")
    return value


def mapping(value: Any) -> Mapping[str, Any]:
    """A JSON object."""
    if not isinstance(value, dict):
        raise ValueError("an object is expected")
    return value


def rising(values: tuple[float, ...]) -> tuple[float, ...]:
    """One or more numbers, each larger than the one before."""
    if not values or any(left >= right for left, right in pairwise(values)):
        raise ValueError("rising numbers are expected")
    return values


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false is expected")
    return value


# How the fields of a record are read, by their types.
_READ: Mapping[str, Read] = {"float": number, "int": count, "str": text, "bool": flag}


def record(cls: Callable[..., _T], data: Any, absent: Collection[str] = (), **read: Read) -> _T:
    """A dataclass from the object that `asdict` made of it: each field by its type, or as `read` says.

    Those that are `absent` in data of earlier versions have their defaults then.
    """
    data = mapping(data)
    given = [part for part in fields(cls) if part.name not in absent or data.get(part.name)]  # type: ignore[arg-type]
    return cls(
        **{
            part.name: None
            if data[part.name] is None and str(part.type).endswith("None")
            else (read.get(part.name) or _READ[str(part.type).removesuffix(" | None")])(data[part.name])
            for part in given
        }
    )


def by_name(read: Read) -> Read:
    """An object whose values are read so."""
    return lambda data: {name: read(value) for name, value in mapping(data).items()}
