"""Did-you-mean."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known word that `word` is most likely a slip of, None where none is near."""
    names = list(known)
    folded = {name.lower(): name for name in reversed(names)}
    if word.lower() in folded:
        return folded[word.lower()]
    # Swapped letters of a three-letter name are still only two thirds alike.
    matches = get_close_matches(word.lower(), folded, n=3, cutoff=0.65)
    # Of names that are equally near, the one that was declared first.
    order = {name.lower(): at for at, name in reversed([*enumerate(names)])}
    best = min(matches, key=lambda match: (-_likeness(word.lower(), match), order[match]), default=None)
    return None if best is None else folded[best]


def _likeness(word: str, name: str) -> float:
    return SequenceMatcher(None, name, word).ratio()


def listed(words: Iterable[str], *, last: str = "or") -> str:
    """`a`, `b` or `c`."""
    quoted = [f"`{word}`" for word in words]
    if len(quoted) < 2:
        return "".join(quoted)
    return f"{', '.join(quoted[:-1])} {last} {quoted[-1]}"
