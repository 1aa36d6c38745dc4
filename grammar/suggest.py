"""Words in messages: the known word that was likely meant, and lists of words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher, get_close_matches

from qpdsl.grammar.diagnostic import Edit
from qpdsl.grammar.source import Span


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known word that `word` is most likely a slip of, None where none is near."""
    names = list(known)
    folded = {name.lower(): name for name in reversed(names)}
    if word.lower() in folded:
        return folded[word.lower()]
    # Swapped letters of a three-letter name are still only two thirds alike.
    matches = get_close_matches(word.lower(), folded, n=3, cutoff=0.65)
    # Of names that are equally near, the one that was declared first.
    order = {name.lower(): index for index, name in reversed([*enumerate(names)])}
    best = min(matches, key=lambda match: (-_likeness(word.lower(), match), order[match]), default=None)
    return None if best is None else folded[best]


def did_you_mean(word: str, known: Iterable[str], span: Span) -> tuple[str | None, Edit | None]:
    """Help that names the known word nearest to `word`, and the edit that writes it there; None where none is near."""
    near = closest(word, known)
    return (f"did you mean `{near}`?", Edit(span, near)) if near else (None, None)


def listed(words: Iterable[str], *, last: str = "or") -> str:
    """`a`, `b` or `c`: the words in backticks."""
    return enumerated([f"`{word}`" for word in words], last=last)


def enumerated(phrases: Sequence[str], *, last: str = "or") -> str:
    """a, b or c."""
    if len(phrases) < 2:
        return "".join(phrases)
    return f"{', '.join(phrases[:-1])} {last} {phrases[-1]}"


def _likeness(word: str, name: str) -> float:
    return SequenceMatcher(None, name, word).ratio()
