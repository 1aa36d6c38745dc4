"""Sets of characters, as sorted ranges of code points, and which characters a part of a regex takes.

What `\\d`, `\\w`, `\\s` and case mean is Python's decision: its own engine is asked, once for each part. Half
characters (surrogates) are in no set, since no text holds them.
"""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Iterable
from functools import cache, lru_cache
from re import _constants as sre
from typing import Any

# First and last code points, in order, with a gap between each range and the next.
Ranges = tuple[tuple[int, int], ...]

LAST = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)
ANY: Ranges = ((0, _SURROGATES[0] - 1), (_SURROGATES[1] + 1, LAST))
# Flags that change which characters a part of a pattern takes.
FLAGS = re.IGNORECASE | re.DOTALL
_CATEGORIES = {
    sre.CATEGORY_DIGIT: r"\d",
    sre.CATEGORY_NOT_DIGIT: r"\D",
    sre.CATEGORY_SPACE: r"\s",
    sre.CATEGORY_NOT_SPACE: r"\S",
    sre.CATEGORY_WORD: r"\w",
    sre.CATEGORY_NOT_WORD: r"\W",
}


def takes(op: Any, argument: Any, flags: int) -> Ranges:
    """The characters that an item of Python's parsed regex takes: a literal, a class, or `.`."""
    if op is sre.ANY:
        return ANY if flags & re.DOTALL else without(ANY, ((10, 10),))
    if op is sre.LITERAL:
        items, negated = [(sre.LITERAL, argument)], False
    elif op is sre.NOT_LITERAL:
        items, negated = [(sre.LITERAL, argument)], True
    else:
        negated = argument[0][0] is sre.NEGATE
        items = argument[1:] if negated else argument
    taken = union(chars for kind, value in items for chars in _plain(kind, value))
    if flags & re.IGNORECASE:
        taken = _either_case(tuple(_spelled(kind, value) for kind, value in items), taken)
    return without(ANY, taken) if negated else without(taken, (_SURROGATES,))


def union(sets: Iterable[tuple[int, int]]) -> Ranges:
    """Ranges in any order, that may overlap, as one set."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(sets):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


def without(ranges: Ranges, others: Ranges) -> Ranges:
    """The characters of one set that are not in the other."""
    left: list[tuple[int, int]] = []
    for first, last in ranges:
        for cut_first, cut_last in others:
            if cut_last < first or cut_first > last:
                continue
            if cut_first > first:
                left.append((first, cut_first - 1))
            first = cut_last + 1
            if first > last:
                break
        if first <= last:
            left.append((first, last))
    return tuple(left)


def spelled(ranges: Ranges) -> str:
    """The set as a class that Python's `re` and Rust's `regex` read alike; `ranges` is not empty."""
    return "[" + "".join(_code(a) if a == b else f"{_code(a)}-{_code(b)}" for a, b in ranges) + "]"


def _code(point: int) -> str:
    char = chr(point)
    return char if char.isascii() and char.isalnum() else f"\\U{point:08x}"


def _spelled(kind: Any, value: Any) -> str:
    if kind is sre.CATEGORY:
        return _CATEGORIES[value]
    return _code(value) if kind is sre.LITERAL else f"{_code(value[0])}-{_code(value[1])}"


def _plain(kind: Any, value: Any) -> Ranges:
    if kind is sre.CATEGORY:
        return _category(_CATEGORIES[value])
    return ((value, value),) if kind is sre.LITERAL else ((value[0], value[1]),)


@cache
def _category(escape: str) -> Ranges:
    return without(ANY, _category(escape.lower())) if escape[1].isupper() else _scanned(escape)


@lru_cache(maxsize=256)
def _either_case(parts: tuple[str, ...], plain: Ranges) -> Ranges:
    """Case concerns cased characters alone; of the others those are taken that are `plain`ly in the class."""
    folded = re.compile(f"[{''.join(parts)}]", re.IGNORECASE)
    cased = _cased()
    taken = [(point, point) for point in cased if folded.match(chr(point))]
    return union([*without(plain, union((point, point) for point in cased)), *taken])


@cache
def _cased() -> tuple[int, ...]:
    text, block = _all_characters(), 256
    cased: list[int] = []
    for start in range(0, LAST + 1, block):
        piece = text[start : start + block]
        if piece.lower() != piece or piece.upper() != piece:
            cased += [ord(char) for char in piece if char.lower() != char or char.upper() != char]
    return tuple(cased)


def _scanned(escape: str) -> Ranges:
    """The characters that an escape takes."""
    return tuple((match.start(), match.end() - 1) for match in re.finditer(f"{escape}+", _all_characters()))


@cache
def _all_characters() -> str:
    """Every code point at its own index, surrogates too."""
    return array("I", range(LAST + 1)).tobytes().decode(f"utf-32-{sys.byteorder[0]}e", "surrogatepass")
