"""What is known of the ways of a program: what each gave for each problem, what it took, and how sure it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from qpdsl.planner.budget.budget_policy import Way

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]
Table = np.ndarray[tuple[int, int], np.dtype[np.float64]]
UNSURE = float("-inf")


@dataclass(frozen=True, eq=False)
class Observations:
    """Runs of every way over the same rows: `correct`, `spend` and `support` are float64 [rows, ways].

    `ways` ascend by their mean spend. `correct` is 1 or 0. `spend` is in the unit of a budget. `support` is UNSURE
    where a way does not say how sure it is. `problems` has the key of each row's problem: a problem that was run under
    several seeds has several rows. `nested` has pairs (a, b) of which way b draws all that way a drew, and more: where
    a was tried before, b takes only what it draws besides.
    """

    ways: tuple[Way, ...]
    problems: tuple[str, ...]
    correct: Table
    spend: Table
    support: Table
    nested: frozenset[tuple[int, int]] = frozenset()

    def __post_init__(self) -> None:
        shape = (len(self.problems), len(self.ways))
        if not self.correct.shape == self.spend.shape == self.support.shape == shape:
            raise ValueError(f"observations of {shape[0]} rows and {shape[1]} ways are tables of that shape")

    @property
    def names(self) -> list[str]:
        """The problems, each once."""
        return sorted(set(self.problems))

    def further(self, own: int, later: int) -> Floats:
        """float64 [rows]: what way `later` takes where way `own` was tried before it."""
        before = self.spend[:, own] if (own, later) in self.nested else 0.0
        return np.maximum(self.spend[:, later] - before, 0.0)

    def only(self, wanted: set[str]) -> Observations:
        """The rows of these problems."""
        kept = np.array([problem in wanted for problem in self.problems], dtype=bool)
        problems = tuple(problem for problem in self.problems if problem in wanted)
        return replace(
            self,
            problems=problems,
            correct=self.correct[kept],
            spend=self.spend[kept],
            support=self.support[kept],
        )


def by_spend(
    ways: Sequence[Way],
    problems: Sequence[str],
    correct: Table,
    spend: Table,
    support: Table,
    nested: frozenset[tuple[int, int]] = frozenset(),
) -> Observations:
    """Observations with the ways put in the order of their mean spend; `nested` has numbers of before."""
    order = [int(number) for number in np.argsort(spend.mean(axis=0), kind="stable")]
    place = {number: position for position, number in enumerate(order)}
    pairs = frozenset((place[a], place[b]) for a, b in nested if place[a] < place[b])
    return Observations(
        tuple(ways[number] for number in order),
        tuple(problems),
        correct[:, order],
        spend[:, order],
        support[:, order],
        pairs,
    )
