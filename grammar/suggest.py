"""Did-you-mean."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known word that `word` is most likely a slip of, None where none is near."""
    names = list(known)
    folded = {name.lower(): name for name in reversed(names)}
    if word.lower() in folded:
        return folded[word.lower()]
    # Swapped letters of a three-letter name are still only two thirds alike.
    matches = get_close_matches(word.lower(), folded, n=1, cutoff=0.65)
    return folded[matches[0]] if matches else None


def listed(words: Iterable[str], *, last: str = "or") -> str:
    """`a`, `b` or `c`."""
    quoted = [f"`{word}`" for word in words]
    if len(quoted) < 2:
        return "".join(quoted)
    return f"{', '.join(quoted[:-1])} {last} {quoted[-1]}"
