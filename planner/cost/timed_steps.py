"""What the steps of a run took, by their size, and the profile of their model that follows from it.

So a device is known after the first run on it, without a measurement of its own. A run meets few sizes: between and
beyond them the curves have the shape that the roofline gives, times the factor by which the nearest steps were slower.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from qpdsl.planner.cost.device import Curve, Device, ModelProfile, ModelShape

# The first steps of a model are slower than all others, and fewer than `_LEAST` say little.
_WARMING, _LEAST = 2, 4
# Sizes of which the larger is at most so many times the smaller count as one; the latest steps of each are kept.
_CLASS, _KEPT = math.sqrt(2), 64
# Figures that differ by no more than this say the same.
_SAME = 0.2
# By which points of a curve its beginning is known: the first, and this one.
_LINE = 4
# How many steps of both kinds are kept.
_MIXED = 256
_Steps = dict[int, deque[tuple[int, float]]]


@dataclass(slots=True)
class TimedSteps:
    """The steps of one model: seconds by the sequences that draw in a step, or by its tokens of prompts.

    `count`: those of either kind. Steps of both kinds only add to what is known of the others.
    """

    count: int = 0
    _passed: int = 0
    _decodes: _Steps = field(default_factory=dict)
    _prefills: _Steps = field(default_factory=dict)
    _mixed: deque[tuple[int, int, float]] = field(default_factory=lambda: deque(maxlen=_MIXED))

    def add(self, decoded: int, prefilled: int, seconds: float) -> None:
        """A step of `decoded` drawn tokens and `prefilled` ones of prompts, without the seconds that others had."""
        if self._passed < _WARMING or seconds <= 0 or not decoded + prefilled:
            self._passed += 1
            return
        if prefilled and decoded:
            # One that draws more than it reads says too little of the reading.
            if prefilled >= decoded:
                self._mixed.append((decoded, prefilled, seconds))
            return
        self.count += 1
        _add(self._prefills if prefilled else self._decodes, prefilled or decoded, seconds)

    @property
    def tells(self) -> bool:
        """Whether enough was seen for a profile."""
        return self.count >= _LEAST

    def profile(self, shape: ModelShape, device: Device, before: ModelProfile | None = None) -> ModelProfile:
        """The profile of a model of this shape on the device, where these `tells`.

        Sizes that this run did not reach are as `before`, which runs before it gave.
        """
        assert self.tells
        usual = device.by_roofline(shape)
        decodes, prefills = _factors(self._decodes, usual.decode), _factors(self._prefills, usual.prefill)
        # Of a kind that no run has met, the other kind tells how fast the device is.
        if before is not None and not decodes:
            decode = before.decode
        else:
            decode = _scaled(usual.decode, decodes or prefills, None if before is None else before.decode)
        # What is left of a step without work, by a line through its smallest sizes.
        (small, low), (large, high) = decode.points[0], decode.points[min(len(decode.points) - 1, _LINE)]
        overhead = max(low - (high - low) / (large - small) * small, 0.0)
        prefills = _factors(self._with_mixed(decode, overhead), usual.prefill)
        if before is not None and not prefills:
            prefill = before.prefill
        else:
            prefill = _scaled(usual.prefill, prefills or decodes, None if before is None else before.prefill)
        steps = self.count + (0 if before is None else before.steps)
        return ModelProfile(shape, overhead, usual.context, decode, prefill, steps=steps)

    def _with_mixed(self, decode: Curve, overhead: float) -> _Steps:
        """Steps of prompts, with those of both kinds less what their drawn tokens take by themselves."""
        steps = {key: deque(members, _KEPT) for key, members in self._prefills.items()}
        for decoded, prefilled, seconds in self._mixed:
            rest = seconds - (decode.at(decoded) - overhead)
            if rest > 0:
                _add(steps, prefilled, rest)
        return steps


def differ(one: ModelProfile, other: ModelProfile) -> bool:
    """Whether two profiles of a model say that some step takes another time."""
    pairs = ((one.decode, other.decode), (one.prefill, other.prefill))
    return any(
        abs(a.at(size) - b.at(size)) > _SAME * b.at(size) for a, b in pairs for size, _ in (*a.points, *b.points)
    )


def alike(profile: ModelProfile, shape: ModelShape, device: Device) -> ModelProfile:
    """A model of this shape whose steps are as many times slower than the roofline as those in another's `profile`."""
    known, usual = device.by_roofline(profile.shape), device.by_roofline(shape)
    curves = ((usual.decode, profile.decode, known.decode), (usual.prefill, profile.prefill, known.prefill))
    decode, prefill = (
        Curve(tuple((size, seconds * seen.at(size) / roof.at(size)) for size, seconds in curve.points))
        for curve, seen, roof in curves
    )
    overhead = usual.overhead * profile.overhead / known.overhead
    return ModelProfile(shape, overhead, usual.context, decode, prefill, steps=profile.steps)


def _add(steps: _Steps, size: int, seconds: float) -> None:
    steps.setdefault(round(math.log(size, _CLASS)), deque(maxlen=_KEPT)).append((size, seconds))


def _factors(steps: _Steps, usual: Curve) -> list[tuple[float, float]]:
    """By the size of steps, ascending, how many times as long as usual they took: the lower quartile of each class."""
    found = []
    for _, members in sorted(steps.items()):
        ratios = sorted(seconds / usual.at(size) for size, seconds in members)
        found.append((sum(size for size, _ in members) / len(members), ratios[len(ratios) // 4]))
    return found


def _scaled(usual: Curve, factors: Sequence[tuple[float, float]], before: Curve | None) -> Curve:
    """The usual curve times the factor at each size, but outside of the sizes seen as it was `before`.

    A smaller step takes no longer than a larger one, and a larger one no longer for each of its rows, as it could be
    parted: a figure that says otherwise is of a moment in which the machine had other work.
    """
    times = {size: usual.at(size) * _at(factors, size) for size, _ in (*usual.points, *factors)}
    if before is not None:
        least, most = factors[0][0], factors[-1][0]
        known = {size: seconds for size, seconds in before.points if not least <= size <= most}
        times = {size: seconds for size, seconds in times.items() if least <= size <= most} | known
    points: list[tuple[float, float]] = []
    sizes, least, each = sorted(times), math.inf, math.inf
    for size in reversed(sizes):
        least = times[size] = min(least, times[size])
    for size in sizes:
        each = min(times[size] / size, each)
        points.append((size, size * each))
    return Curve(tuple(points))


def _at(factors: Sequence[tuple[float, float]], size: float) -> float:
    """The factor at a size: between two by the logarithms of the sizes, beyond the last the nearest."""
    index = bisect_right([known for known, _ in factors], size)
    if index in (0, len(factors)):
        return factors[min(index, len(factors) - 1)][1]
    (left, low), (right, high) = factors[index - 1], factors[index]
    return low + (high - low) * math.log(size / left) / math.log(right / left)
