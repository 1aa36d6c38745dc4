"""Anchors in regexes: llguidance takes `^` where nothing can stand before it, and `$` where nothing can stand behind.

Every regex that a model is held to is matched as a whole, so that anchors anywhere else could never hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_ITEM = re.compile(
    r"""
    (?P<flags>\(\?[imsx-]+\))
  | (?P<open>\((?:\?(?:P<\w+>|[imsx-]*:))?)
  | (?P<close>\))
  | (?P<either>\|)
  | (?P<start>\^|\\A)
  | (?P<end>\$)
  | (?P<repeat>(?:[*+?]|\{\d+(?:,\d*)?\})\??)
  | (?P<atom>\\.|\[\^?\]?(?:[^\]\\]|\\.)*\]|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_FLAGS = re.compile(r"\(\?([imsx]*)(?:-[imsx]*)?[:)]")


@dataclass(slots=True)
class _Item:
    kind: str
    place: int
    repeated: bool = False


def misplaced(pattern: str) -> tuple[str, int] | None:
    """The first anchor that llguidance refuses: a phrase that says what it is, and its place."""
    items = _items(pattern)
    by_line = any("m" in match[1] for match in _FLAGS.finditer(pattern))
    found = [*_inner(items, "start", "open", "close"), *_inner(items[::-1], "end", "close", "open")]
    if by_line:
        found += [("an anchor for each line", item.place) for item in items if item.kind in ("start", "end")]
    return min(found, key=lambda one: one[1], default=None)


def _items(pattern: str) -> list[_Item]:
    """The parts of the pattern; both ends of a group know whether it is repeated."""
    items: list[_Item] = []
    opened: list[_Item] = []
    group: _Item | None = None
    for match in _ITEM.finditer(pattern):
        kind = match.lastgroup or ""
        if kind == "repeat":
            for item in (*items[-1:], group):
                if item:
                    item.repeated = True
            group = None
            continue
        items.append(_Item(kind, match.start()))
        if kind == "open":
            opened.append(items[-1])
        group = opened.pop() if kind == "close" and opened else None
    return items


def _inner(items: list[_Item], anchor: str, opening: str, closing: str) -> Iterator[tuple[str, int]]:
    """The anchors that have something before them, in this reading direction, or that are repeated."""
    sign, where = ("^", "after the beginning") if anchor == "start" else ("$", "before the end")
    leading, outer, repeated = True, [True], [False]
    for item in items:
        if item.kind == anchor:
            if item.repeated or any(repeated):
                yield f"a repeated `{sign}`", item.place
            elif not leading:
                yield f"`{sign}` {where}", item.place
        elif item.kind == opening:
            outer.append(leading)
            repeated.append(item.repeated)
        elif item.kind == closing and len(outer) > 1:
            outer.pop()
            repeated.pop()
            leading = False
        elif item.kind == "either":
            leading = outer[-1]
        elif item.kind != "flags":
            leading = False
