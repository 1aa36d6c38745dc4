"""The outcome of a comparison in one sentence, and the figures in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal as OneOf

from qpdsl.comparison.comparison import Comparison
from qpdsl.measures.statistics.intervals import Interval
from qpdsl.measures.statistics.power import POWER

# How the second side stands to the first.
Kind = OneOf["better", "worse", "unclear", "equal", "ungraded"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """`better` and `worse` are significant at 5%. `equal`: no answer differs. `ungraded`: nothing says who is right."""

    kind: Kind
    text: str


def verdict(comparison: Comparison, first: str = "A", second: str = "B") -> Verdict:
    """What a comparison says, with these names for its sides."""
    pairs = len(comparison.matching.pairs)
    differ = comparison.other_answers + len(comparison.gained) + len(comparison.lost)
    if not differ:
        return Verdict("equal", f"{first} and {second} give the same answer to {_every(pairs)}")
    figure = comparison.accuracy
    if figure is None or comparison.detectable is None:
        return Verdict(
            "ungraded", f"answers to {differ:,} of {pairs:,} problems differ, and nothing says which are right"
        )
    paired = figure.paired
    said = f"{points(paired.difference)} {between(paired.interval)}, {p_text(paired.p_value)}"
    if paired.is_significant():
        kind: Kind = "better" if paired.difference > 0 else "worse"
        return Verdict(kind, f"{second} is {kind}: {said}")
    seen = f"{100 * comparison.detectable:.1f} points would be seen {POWER:.0%} of the time"
    return Verdict("unclear", f"no difference can be told: {said}; over {paired.pairs:,} problems, {seen}")


def points(difference: float) -> str:
    """A difference of shares, in points of a hundred."""
    return f"{_signed(difference)} points"


def between(interval: Interval) -> str:
    """An interval of differences of shares, in points."""
    return f"({_signed(interval.low)} to {_signed(interval.high)})"


def p_text(p_value: float) -> str:
    """A p-value with as many digits as it deserves."""
    if p_value < 0.001:
        return "p < 0.001"
    return f"p = {p_value:.3f}" if p_value < 0.1 else f"p = {p_value:.2f}"


def _signed(difference: float) -> str:
    text = f"{100 * difference:+.1f}"
    # Neither sign says anything of what is rounded to nothing.
    return "0.0" if text in ("+0.0", "-0.0") else text


def _every(pairs: int) -> str:
    return "the one problem" if pairs == 1 else f"all {pairs:,} problems"
