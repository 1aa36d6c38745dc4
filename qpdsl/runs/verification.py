"""Rows of a saved run, run again, and held against what was saved of them: the same to the byte, or where they part.

What is held against each other is what no result may depend on anything but the run for: answers, scores, columns and
candidates that are saved, tokens where samples are, and counts of tokens, unless a plan gives samples up, which is a
matter of which end first. Grades are not: a grader may be another.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from qpdsl.planner.plan.physical import PhysicalPlan, VoteStrategy, everything
from qpdsl.planner.values.value import dumps
from qpdsl.runs.compare.first_divergences import PlacedDivergence
from qpdsl.runs.row_outcome import Outcome
from qpdsl.runs.store.run_record import RowRecord

_RESULTS = ("answer", "score", "greedy", "error", "unanswered", "unscored", "support", "rows", "candidates")
_COUNTS = ("tokens_in", "tokens_out")
_AROUND = 24


@dataclass(frozen=True, slots=True)
class SavedDifference:
    """The first place at which what is saved of a row is not what came of it again: where, and both values.

    Of texts `character` is the first that differs, from 0, and the values are what stands around it.
    """

    where: str
    saved: Any
    again: Any
    character: int | None = None


@dataclass(frozen=True, slots=True)
class VerifiedRow:
    """A saved row and what came of it again. `difference` and `divergence` are None where nothing differs.

    `divergence`: the first token that differs, the saved one first, where the tokens of the row were saved.
    `damaged`: the file does not hold what was written, so that there is nothing to hold against it.
    """

    number: int
    id: str
    difference: SavedDifference | None = None
    divergence: PlacedDivergence | None = None
    damaged: bool = False

    @property
    def same(self) -> bool:
        return self.difference is None and self.divergence is None and not self.damaged


@dataclass(frozen=True, slots=True)
class Verification:
    """The rows that were run again, in their order. `saved` is how many rows the run has, `tokens` whether it has them.

    `elsewhere` says in words what computes otherwise here than it did; `left_out` are ids of rows that took longer than
    they were given, which says nothing of how they would end.
    """

    run: str
    rows: tuple[VerifiedRow, ...]
    saved: int
    tokens: bool
    elsewhere: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def differing(self) -> list[VerifiedRow]:
        return [row for row in self.rows if not row.same]


def spread_rows(numbers: Sequence[int], count: int, seed: int) -> list[int]:
    """So many of some numbers, one of each of as many parts of about equal length, by a seed."""
    chosen = random.Random(seed)
    if count >= len(numbers):
        return list(numbers)
    ends = [len(numbers) * part // count for part in range(count + 1)]
    return [numbers[chosen.randrange(low, high)] for low, high in pairwise(ends)]


def gives_up(plan: PhysicalPlan) -> bool:
    """Whether a plan gives samples up, so that how many tokens are drawn depends on which end first."""
    nodes = everything(plan.ops)
    return any(isinstance(node.strategy, VoteStrategy) and node.strategy.decided for node in nodes)


def saved_difference(row: RowRecord, again: Outcome, *, counts: bool) -> SavedDifference | None:
    """The first difference between a saved row and what came of it again; with `counts` those of tokens, too."""
    saved, new = (json.loads(dumps(outcome.to_json())) for outcome in (row.outcome, again))
    for name in (*_RESULTS, *(_COUNTS if counts else ())):
        if (found := _difference(name, _ungraded(saved[name]), _ungraded(new[name]))) is not None:
            return found
    return None


def _ungraded(value: Any) -> Any:
    """Candidates without their grades."""
    if isinstance(value, list):
        return [
            {name: own for name, own in part.items() if name != "correct"} if isinstance(part, dict) else part
            for part in value
        ]
    return value


def _difference(where: str, saved: Any, again: Any) -> SavedDifference | None:
    if dumps(saved) == dumps(again):
        return None
    if isinstance(saved, dict) and isinstance(again, dict):
        for name in dict.fromkeys((*saved, *again)):
            if (found := _difference(f"{where}.{name}", saved.get(name), again.get(name))) is not None:
                return found
        return None
    if isinstance(saved, list) and isinstance(again, list):
        for place, (one, other) in enumerate(zip(saved, again, strict=False)):
            if (found := _difference(f"{where}[{place}]", one, other)) is not None:
                return found
        return SavedDifference(f"{where}: how many", len(saved), len(again))
    if isinstance(saved, str) and isinstance(again, str):
        pairs = zip(saved, again, strict=False)
        place = next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(saved), len(again)))
        around = slice(max(place - _AROUND, 0), place + _AROUND)
        return SavedDifference(where, saved[around], again[around], place)
    return SavedDifference(where, saved, again)
