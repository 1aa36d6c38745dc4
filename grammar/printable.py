"""Text from outside, as a terminal may show it: whatever a terminal would obey, or nobody would see, as an escape.

Names of files, values of rows, texts of models and programs can hold control characters, escape sequences, marks that
turn the direction of writing, halves of characters, and characters without a width. Each becomes `\\uXXXX` as in JSON,
beyond the first plane a pair of them. So JSON stays the same data, and two texts that differ look different.

How wide a text is on a terminal.
"""

from __future__ import annotations

import re
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


_TAB = "    "
# Letters and marks without a shape of their own.
_UNSEEN = "\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0"
_SUSPECT = re.compile(f"[^ -~\\n\\t\\u00a1-\\u00ac\\u00ae-\\u02ff]|[{_UNSEEN}]")
# What joins letters of some scripts, and parts of an emoji, and says how a character is drawn.
_JOINER = "\u200d"
_EMOJI = "\ufe0f"
_JOINERS = f"\u200c\ufe0e{_JOINER}{_EMOJI}"
_KEYCAPS = "0123456789#*"


def printable(text: str, *, tabs: bool = True) -> str:
    """The text with its lines. Tabs stay, or with `tabs` false become four spaces.

    What joins characters stays where it can: behind a character that is not ASCII.
    """
    if not tabs:
        text = text.replace("\t", _TAB)
    if _SUSPECT.search(text) is None:
        return text
    return "".join(
        char if char in "\n\t" or is_printable(char, text[at - 1] if at else "") else escaped(char)
        for at, char in enumerate(text)
    )


def one_line(text: str) -> str:
    """The text on one line, without the space around it; `⏎` stands where a line ended, a space for a tab."""
    return printable(text.strip(" \t\r\n").replace("\t", " ")).replace("\n", "⏎")


def escaped(char: str) -> str:
    """A character as an escape of JSON."""
    point = ord(char)
    if point <= 0xFFFF:
        return f"\\u{point:04x}"
    high, low = divmod(point - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"


def is_printable(char: str, before: str) -> bool:
    """Whether a character may be shown behind another, `before`, or where that is empty at the beginning."""
    if char in _JOINERS:
        return _joins(char, before)
    return (char.isprintable() or category(char) == "Zs") and char not in _UNSEEN


def _joins(char: str, before: str) -> bool:
    """Whether what joins has something before it to join."""
    if before == "" or before in _JOINERS:
        return char == _JOINER and before == _EMOJI
    return is_printable(before, "") if before > "\u007f" else char == _EMOJI and before in _KEYCAPS
