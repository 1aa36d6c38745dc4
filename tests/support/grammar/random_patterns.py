"""Random regexes of the dialect, and random texts that are likely to match them."""

from __future__ import annotations

import random

from qpdsl.grammar.literals import regex

_LEAVES = ["a", "b", "ab", ".", "[^a]", r"\n", r"\w", r"\d", r"\S", r"\s", r"\W", "(?:)", "é", "(?i:K)", "(?s:.)", '"']
_LEAVES += ["^", "$", r"\\", r"[\x00-\x20]", '[^\\s"]']
_REPEATS = ["*", "+", "?", "{2}", "{0,2}", "{1,2}", "{2,}", "*?", "+?", "??", "{0,2}?", "{1,3}?"]
# Where engines disagree: other scripts' digits, marks, separators, a newline at the end, characters with odd cases.
_CHARACTERS = 'aaabbk1 \n"\\é٣́\x1c\u212a\u0130\u2028\u00b2'


def _any_pattern(chance: random.Random, depth: int) -> str:
    kind = chance.random()
    if depth == 0 or kind < 0.3:
        return chance.choice(_LEAVES)
    inner = _any_pattern(chance, depth - 1)
    if kind < 0.55:
        return inner + _any_pattern(chance, depth - 1)
    if kind < 0.7:
        return f"({inner})"
    if kind < 0.82:
        return f"(?:{inner}|{_any_pattern(chance, depth - 1)})"
    return f"(?:{inner}){chance.choice(_REPEATS)}"


def pattern(chance: random.Random) -> str:
    """A pattern of the dialect, of at most 60 characters."""
    while True:
        found = _any_pattern(chance, 5)
        if len(found) <= 60 and regex.check(found, 1) is None:
            return found


def text(chance: random.Random) -> str:
    """A text of at most six characters."""
    return "".join(chance.choice(_CHARACTERS) for _ in range(chance.randrange(7)))
