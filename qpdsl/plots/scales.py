"""Axes: where a value lies on one, and which values have a tick."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_STEPS = (1, 2, 5)


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis from `low` to `high`, with low < high; `log` means logarithmic, with low over 0."""

    low: float
    high: float
    log: bool = False

    def at(self, value: float) -> float:
        """Where a value lies: 0 at the low end, 1 at the high end."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self, most: int) -> list[float]:
        """Round values on the axis, rising; `most` of them at the most, which is 2 or more."""
        choices = (_log_ticks(self) if self.log else iter(())), _linear_ticks(self)
        for ticks in (ticks for choice in choices for ticks in choice):
            if 2 <= len(ticks) <= most:
                return ticks
        return [self.low, self.high]


def linear_scale(values: Iterable[float], least: float = -math.inf, most: float = math.inf) -> Scale:
    """An axis that shows all values with a little room at both ends, from `least` to `most` at the widest."""
    low, high = _range(values)
    room = max((high - low) * 0.05, abs(high) * 0.005, 1e-6)
    return Scale(max(low - room, least), min(high + room, most))


def log_scale(values: Iterable[float]) -> Scale:
    """A logarithmic axis that shows all values, each over 0, with a little room at both ends."""
    low, high = _range(values)
    room = max((high / low) ** 0.05, 1.1)
    return Scale(low / room, high * room, log=True)


def _range(values: Iterable[float]) -> tuple[float, float]:
    known = list(values) or [0.0, 1.0]
    return min(known), max(known)


def _log_ticks(scale: Scale) -> Iterator[list[float]]:
    """1, 2, 5, 10…; then 1, 10, 100…; then every second, third… power of ten."""
    first, last = math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high))
    powers = [10.0**power for power in range(first, last + 1)]
    for values in ([step * power for power in powers for step in _STEPS], powers):
        yield _within(scale, values)
    for apart in range(2, len(powers)):
        yield _within(scale, powers[::apart])


def _linear_ticks(scale: Scale) -> Iterator[list[float]]:
    """Multiples of a round step, from small steps to large ones."""
    power = math.floor(math.log10(scale.high - scale.low)) - 2
    for step in (base * 10.0**exponent for exponent in range(power, power + 5) for base in _STEPS):
        first, last = math.ceil(scale.low / step), math.floor(scale.high / step)
        # Products such as 3 * 0.1 are rounded, so that they are written as people write them.
        yield _within(scale, [round(number * step, 12) for number in range(first, last + 1)])


def _within(scale: Scale, values: Iterable[float]) -> list[float]:
    return [value for value in values if scale.low <= value <= scale.high]
