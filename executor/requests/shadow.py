"""Which draws are shadowed, or try what is not expected to be best: by numbers that belong to a draw alone."""

from __future__ import annotations

from dataclasses import dataclass

_WORD = (1 << 64) - 1
# The stride of a counter, and the two multipliers of a mixer of 64 bits (splitmix64: Steele, Lea and Flood, 2014).
_STRIDE, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_SHADOW = 1
# The share where the planner chose a way that loses something, and nobody said otherwise.
CHOSEN_SHARE = 0.02


def chance(key: int, position: int, purpose: int) -> float:
    """A number in [0, 1) for the draw at `position` under a noise key of 64 bits, another one for each `purpose`.

    It is none of the numbers that the draw's token depends on.
    """
    word = key & _WORD
    for part in (position, purpose):
        word = (word ^ part) + _STRIDE & _WORD
        word = (word ^ word >> 30) * _FIRST & _WORD
        word = (word ^ word >> 27) * _SECOND & _WORD
        word ^= word >> 31
    return float(word >> 11) / (1 << 53)


def shadowed(key: int, position: int, share: float) -> bool:
    """Whether a draw is among the `share` of all that the full model draws too, to know what it would have drawn."""
    return share > 0 and chance(key, position, _SHADOW) < share


@dataclass(frozen=True, slots=True)
class Shadowing:
    """The share of early draws that is shadowed: `share` for all operators, else `CHOSEN_SHARE` for those `chosen`."""

    share: float | None = None
    chosen: frozenset[str] = frozenset()

    def of(self, operator: str) -> float:
        """The share of an operator, by its id."""
        if self.share is not None:
            return self.share
        return CHOSEN_SHARE if operator in self.chosen else 0.0
