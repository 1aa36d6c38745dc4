"""Validation of JSON data that may be damaged: each function returns its argument, or raises ValueError."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

# Larger and smaller than any figure that is counted or measured: products and quotients of such figures stay finite,
# and above zero.
_LARGEST = 1e30
SMALLEST = 1e-15
_LEAST_PEAK = 0.999


def number(value: Any, *, positive: bool = False) -> float:
    """A finite number that is not negative, and zero or not too near to it."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LARGEST:
        raise ValueError("a number is expected")
    if value < SMALLEST and (positive or value):
        raise ValueError("a number above zero is expected")
    return value


def peak(value: Any) -> float:
    """The ratio of the largest of some figures to their mean, which only rounding takes below one."""
    if number(value) < _LEAST_PEAK:
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
