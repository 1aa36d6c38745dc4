"""Where pairs of tokens stand in texts, so that what followed them can be found again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# Places of a pair that are kept, the latest ones.
_PLACES = 4
# A match is told from a longer one up to so many tokens.
_LONGEST = 16
# Pairs after which the older half is forgotten.
_PAIRS = 1 << 14


class Match(NamedTuple):
    """`tokens[end - length : end]` are the last tokens of a sample; what follows them there may follow here."""

    length: int
    tokens: Sequence[int]
    end: int

    def following(self, count: int, own: Sequence[int]) -> list[int]:
        """Up to `count` tokens from `end` on. In the sample's `own` tokens, what follows goes on with itself."""
        found = list(self.tokens[self.end : self.end + count])
        if self.tokens is own and found:
            period = len(found)
            found += [found[index % period] for index in range(period, count)]
        return found


class History:
    """An index of token lists that only grow, two tokens a key: a token is added and a pair is found in O(1).

    This is the search of LZ77 (Ziv and Lempel, 1977) with a chain for each pair, and of prompt lookup (Saxena, 2023).
    """

    def __init__(self, *, bounded: bool = True) -> None:
        """`bounded`: what was added long ago is forgotten."""
        self._bounded = bounded
        self._young: dict[tuple[int, int], list[tuple[Sequence[int], int]]] = {}
        self._old: dict[tuple[int, int], list[tuple[Sequence[int], int]]] = {}

    def add(self, tokens: Sequence[int], start: int, end: int) -> None:
        """Adds the pairs of `tokens` whose second token stands from `start` to before `end`, at 1 or later."""
        for place in range(max(start, 1), end):
            places = self._young.setdefault((tokens[place - 1], tokens[place]), [])
            places.append((tokens, place + 1))
            if len(places) > _PLACES:
                del places[0]
        if self._bounded and len(self._young) > _PAIRS:
            self._old, self._young = self._young, {}

    def __contains__(self, pair: tuple[int, int]) -> bool:
        return pair in self._young or pair in self._old

    def matches(self, tokens: Sequence[int]) -> list[Match]:
        """Places where the last tokens, two at least, stood before, the latest first."""
        pair = tokens[-2], tokens[-1]
        places = [*reversed(self._young.get(pair, ())), *reversed(self._old.get(pair, ()))]
        return [Match(_agreeing(tokens, other, end), other, end) for other, end in places if end < len(other)]


def _agreeing(tokens: Sequence[int], other: Sequence[int], end: int) -> int:
    """How many of the last tokens stand before `end` in the other list."""
    most = min(_LONGEST, len(tokens), end)
    length = 2
    while length < most and tokens[-length - 1] == other[end - length - 1]:
        length += 1
    return length
