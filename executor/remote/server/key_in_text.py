"""Takes a key out of what a server says, also where the server wrote it in another way."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from urllib.parse import quote

# So many letters of a key in a row may be shown; servers name a key by its first and last ones.
_SHOWN = 16
_GONE = "…"


def without_key(text: str, key: str) -> str:
    """The text without every word that has more than 16 letters of the key in a row, or all of a shorter one.

    Signs between the letters and their case do not count. The key is also found reversed, percent-encoded, in
    hexadecimal and in Base64.
    """
    text = text.replace(key, _GONE)
    places = [place for place, sign in enumerate(text) if sign.isalnum()]
    letters = "".join(text[place].casefold()[0] for place in places)
    hidden = [False] * len(text)
    for size, pieces in _pieces(key).items():
        for at in range(len(letters) - size + 1):
            if letters[at : at + size] in pieces:
                first, last = places[at], places[at + size - 1]
                hidden[first : last + 1] = [True] * (last + 1 - first)
    return "".join(_shown(text, hidden))


def _pieces(key: str) -> dict[int, set[str]]:
    """What must not be shown, in letters and digits, by its length."""
    pieces: dict[int, set[str]] = {}
    for form in _forms(key):
        letters = "".join(sign.casefold() for sign in form if sign.isalnum())
        size = min(_SHOWN + 1, len(letters))
        for at in range(len(letters) - size + 1) if size else ():
            pieces.setdefault(size, set()).add(letters[at : at + size])
    return pieces


def _forms(key: str) -> Iterator[str]:
    yield from (key, key[::-1], quote(key, safe=""), "".join(f"%{ord(sign):02x}" for sign in key), key.encode().hex())
    # What stands before it moves the bits; the letters at both ends are made of others too.
    for before, first in enumerate((0, 2, 3)):
        whole = base64.b64encode(bytes(before) + key.encode()).decode().rstrip("=")[first:-1]
        yield from (whole, whole.replace("+", "-").replace("/", "_"))


def _shown(text: str, hidden: list[bool]) -> Iterator[str]:
    """The text with words that are hidden in part replaced whole."""
    at = 0
    while at < len(text):
        end = at
        if text[at].isspace() and not hidden[at]:
            yield text[at]
            at += 1
            continue
        while end < len(text) and (hidden[end] or not text[end].isspace()):
            end += 1
        yield _GONE if any(hidden[at:end]) else text[at:end]
        at = end
