"""Observations that are made up, of problems whose difficulty is known."""

from __future__ import annotations

import numpy as np

from qpdsl.budgets.observations import UNSURE, Observations, by_spend
from qpdsl.planner.plan.budget_policy import FixedStrategy


def easy_and_hard(count: int = 400, *, telling: bool = True) -> Observations:
    """Half of the problems are easy: the cheap way (10) has all of these right and no other, the dear one (100) all.

    The cheap way's support is 0.9 for easy problems and 0.1 for hard ones; or else it says nothing.
    """
    easy = np.arange(count) % 2 == 0
    correct = np.column_stack([easy, np.ones(count)]).astype(np.float64)
    spend = np.column_stack([np.full(count, 10.0), np.full(count, 100.0)])
    sure = np.where(easy, 0.9, 0.1) if telling else np.full(count, UNSURE)
    return by_spend(ways("cheap", "dear"), _names(count), correct, spend, np.column_stack([sure, np.ones(count)]))


def random_problems(seed: int, count: int = 300, number: int = 5) -> Observations:
    """Ways that take 4 times as much each and have harder problems right; support is noisy."""
    random = np.random.default_rng(seed)
    difficulty = random.uniform(0, number, count)
    correct = np.empty((count, number))
    spend = np.empty((count, number))
    support = np.empty((count, number))
    for way in range(number):
        chance = 1 / (1 + np.exp(3 * (difficulty - way - 0.5)))
        correct[:, way] = random.uniform(size=count) < chance
        spend[:, way] = 10 * 4**way * random.uniform(0.5, 1.5, count)
        support[:, way] = np.clip(0.7 * correct[:, way] + random.normal(0.15, 0.15, count), 0, 1)
    return by_spend(ways(*(f"w{way}" for way in range(number))), _names(count), correct, spend, support)


def ways(*names: str) -> list[FixedStrategy]:
    return [FixedStrategy(number, (), name) for number, name in enumerate(names)]


def _names(count: int) -> list[str]:
    return [f"{number:04d}" for number in range(count)]
