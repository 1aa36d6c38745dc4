"""Routed steps of an engine with what every arm takes: each arm computes each step, and the least time counts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.routing.route_trace import RouteTrace
from qpdsl.executor.engine.step.routed_head import FEATURES, RoutedHead, RoutedStep
from qpdsl.executor.engine.step.sampler import SampledTokens
from qpdsl.executor.engine.step.token_head import HeadDraws
from qpdsl.executor.requests.routing import ARMS
from qpdsl.executor.routing.policy import Floats


@dataclass(slots=True)
class RecordedStep:
    """The arm that the policy took, by its number, and the seconds and losses of all arms."""

    context: tuple[float, ...]
    arm: int
    seconds: tuple[float, ...]
    losses: tuple[float, ...]


class Recorder:
    """Has every arm of a head compute each routed step `tries` times, timed by `clock`; one routing, with all arms.

    The draws are those of the arm that the policy chose.
    """

    def __init__(self, head: RoutedHead, tries: int = 1, clock: Callable[[], float] = time.perf_counter) -> None:
        self.steps: list[RecordedStep] = []
        self._head, self._tries, self._clock = head, tries, clock
        head.compute = self._compute

    def trace(self) -> RouteTrace:
        """The recorded steps."""
        return RouteTrace(
            np.array([step.context for step in self.steps]).reshape(-1, len(FEATURES)),
            np.array([step.losses for step in self.steps]).reshape(-1, len(ARMS)),
            np.array([step.arm for step in self.steps], dtype=np.int64),
        )

    def seconds(self) -> Floats:
        """What every arm took in each step, float64 [T, A]."""
        return np.array([step.seconds for step in self.steps]).reshape(-1, len(ARMS))

    def _compute(
        self, hidden: torch.Tensor, draws: HeadDraws, step: RoutedStep, chosen: int
    ) -> tuple[SampledTokens, float]:
        drawn: dict[int, SampledTokens] = {}
        taken = [math.inf] * len(ARMS)
        for attempt in range(self._tries):
            for place in range(len(ARMS))[:: 1 if attempt % 2 == 0 else -1]:
                # Another arm is first each time.
                arm = (place + len(self.steps)) % len(ARMS)
                start = self._clock()
                drawn[arm], _ = self._head.computed(hidden, draws, step, arm)
                taken[arm] = min(taken[arm], self._clock() - start)
        losses = tuple(map(step.loss, taken))
        self.steps.append(RecordedStep(step.context, chosen, tuple(taken), losses))
        return drawn[chosen], taken[chosen]
