"""Which problem of one side is which of the other."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from qpdsl.comparison.side import Problem, Side
from qpdsl.planner.values.json_values import dumps

Mark = Callable[[Problem], Hashable | None]


@dataclass(frozen=True, slots=True)
class Matching:
    """Problems of both sides in pairs, in the order of the first, and those of one side alone.

    `reworded` pairs have the same id and right answer, and another text.
    """

    pairs: tuple[tuple[Problem, Problem], ...]
    only_first: tuple[Problem, ...]
    only_second: tuple[Problem, ...]
    reworded: int


def matched(first: Side, second: Side) -> Matching:
    """Pairs up the problems of two sides; each is in one pair at most."""
    found: dict[int, int] = {}
    for mark in (_by_arguments, _by_id_and_text, _by_text):
        _match(first.problems, second.problems, mark, found)
    reworded: dict[int, int] = {}
    if not found:
        _match(first.problems, second.problems, _by_id_and_reference, reworded)
        # Ids may be no more than numbers of lines, and some right answers of other data will be equal by chance.
        if 2 * len(reworded) >= min(len(first.problems), len(second.problems)):
            found = reworded
        else:
            reworded = {}
    taken = set(found.values())
    return Matching(
        tuple((first.problems[number], second.problems[found[number]]) for number in sorted(found)),
        tuple(problem for number, problem in enumerate(first.problems) if number not in found),
        tuple(problem for number, problem in enumerate(second.problems) if number not in taken),
        len(reworded),
    )


def _by_arguments(problem: Problem) -> Hashable | None:
    return problem.rows[0].key


def _by_id_and_text(problem: Problem) -> Hashable | None:
    """The program's parameters are arguments too, so that the same problem has others at another width."""
    row = problem.rows[0]
    return (problem.id, row.asked, dumps(problem.reference)) if row.asked else None


def _by_text(problem: Problem) -> Hashable | None:
    """The same problem in another file. What is kept of a long text is its beginning, which others may have too."""
    row = problem.rows[0]
    return (row.asked, dumps(problem.reference)) if row.asked and not row.asked.endswith("…") else None


def _by_id_and_reference(problem: Problem) -> Hashable | None:
    """Other words for the same problem, as another `--map` gives."""
    return (problem.id, dumps(problem.reference)) if problem.reference is not None else None


def _match(first: Sequence[Problem], second: Sequence[Problem], mark: Mark, found: dict[int, int]) -> None:
    """Adds to `found` pairs of numbers, of problems that are in none yet and have the same mark, in their order."""
    taken = set(found.values())
    free: defaultdict[Hashable, deque[int]] = defaultdict(deque)
    for number, problem in enumerate(second):
        if number not in taken and (known := mark(problem)) is not None:
            free[known].append(number)
    for number, problem in enumerate(first):
        if number not in found and (known := mark(problem)) is not None and free[known]:
            found[number] = free[known].popleft()
