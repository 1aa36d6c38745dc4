"""How wide a text is on a terminal."""

from __future__ import annotations

from unicodedata import category, east_asian_width


def cells(text: str) -> int:
    """How many terminal cells a text takes."""
    return len(text) if text.isascii() else sum(map(_cells, text))


def shorten(text: str, limit: int) -> str:
    """The text, cut to at most `limit` cells, with an ellipsis where it is cut."""
    if cells(text) <= limit:
        return text
    chars, left = [], limit - 1
    for char in text:
        left -= _cells(char)
        if left < 0:
            break
        chars.append(char)
    return "".join([*chars, "…"])


def _cells(char: str) -> int:
    if category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if east_asian_width(char) in "WF" else 1
