"""One side of a comparison: a kept run, or several that differ in their seeds alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from qpdsl.errors import UsageError
from qpdsl.measures.statistics.seed_shares import share_right
from qpdsl.planner.values.json_values import shown
from qpdsl.run_store.fingerprint import changes
from qpdsl.run_store.measured import operators_of
from qpdsl.run_store.run_file import RunFile
from qpdsl.run_store.run_folder import RunFolder
from qpdsl.run_store.run_record import RowRecord, RunInfo, RunRecord

# Between the runs of a side, on a command line.
BETWEEN = ","


@dataclass(frozen=True, slots=True)
class KeptRun:
    """A kept run with its finished rows, in the order of the input. `path` is its file; `operators`: `operators_of`."""

    path: Path
    info: RunInfo
    rows: tuple[RowRecord, ...]
    operators: tuple[Mapping[str, Any], ...] = ()

    @property
    def record(self) -> RunRecord:
        return self.info.record


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem, with its finished row in every run of a side, in the order of the runs."""

    rows: tuple[RowRecord, ...]

    @property
    def id(self) -> str:
        return self.rows[0].outcome.id

    @property
    def reference(self) -> Any:
        return self.rows[0].reference

    @property
    def correct(self) -> float | None:
        """The share of the runs that have it right; None where one of them could not be graded."""
        return share_right([row.outcome.correct for row in self.rows])

    @property
    def answers(self) -> str:
        """The answers for people, that of each seed."""
        return " / ".join(_answer(row) for row in self.rows)

    @property
    def tokens_in(self) -> float:
        return fmean(row.outcome.tokens_in for row in self.rows)

    @property
    def tokens_out(self) -> float:
        return fmean(row.outcome.tokens_out for row in self.rows)

    @property
    def engine_seconds(self) -> float:
        return fmean(row.outcome.engine_seconds for row in self.rows)


@dataclass(frozen=True)
class Side:
    """Runs of one set-up, each with a seed of its own, and the problems that all of them have finished."""

    runs: tuple[KeptRun, ...]

    @property
    def record(self) -> RunRecord:
        """The record of the first run; those of the others differ in what no result depends on, and in the seed."""
        return self.runs[0].record

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(run.record.seed for run in self.runs)

    @property
    def name(self) -> str:
        """The ids of the runs."""
        return BETWEEN.join(run.info.id for run in self.runs)

    @cached_property
    def problems(self) -> tuple[Problem, ...]:
        """The problems in the order of the first run."""
        others = [dict(_numbered(run.rows)) for run in self.runs[1:]]
        return tuple(
            Problem((row, *(other[key] for other in others)))
            for key, row in _numbered(self.runs[0].rows)
            if all(key in other for other in others)
        )

    @property
    def unfinished(self) -> list[KeptRun]:
        """Runs that have not all rows of their input."""
        return [run for run in self.runs if len(run.rows) < run.record.rows]


def read_run(path: Path) -> KeptRun:
    """A kept run. Raises UsageError where it cannot be read."""
    with RunFile.reading(path) as run:
        return KeptRun(path, run.info(), tuple(run.rows()), tuple(operators_of(run)))


def read_side(name: str, folder: RunFolder) -> Side:
    """The runs that a side names, parted by commas, as `RunFolder.find` finds them.

    Raises UsageError where one cannot be found or read, or where they differ in more than the seed.
    """
    return side_of([read_run(folder.find(part.strip())) for part in name.split(BETWEEN)])


def side_of(runs: Sequence[KeptRun]) -> Side:
    """A side of one or more runs. Raises UsageError where they differ in more than the seed, or have the same."""
    first = runs[0]
    seeds = {first.record.seed: first.info.id}
    for run in runs[1:]:
        if run.record.seed in seeds:
            both = f"`{seeds[run.record.seed]}` and `{run.info.id}`"
            raise UsageError(f"{both} have the same seed, {run.record.seed}: one side takes a run of each seed")
        seeds[run.record.seed] = run.info.id
        old, new = ({**each.record.fingerprint, "seed": ""} for each in (first, run))
        if differences := changes(old, new):
            raise UsageError(
                f"`{run.info.id}` is no other seed of `{first.info.id}`: it differs in {', '.join(differences)}",
                "one side takes runs that differ in their seeds alone",
            )
    return Side(tuple(runs))


def _numbered(rows: Sequence[RowRecord]) -> Iterator[tuple[tuple[str, int], RowRecord]]:
    """Rows by their keys; of rows with equal arguments the first, the second…"""
    seen: Counter[str] = Counter()
    for row in rows:
        yield (row.key, seen[row.key]), row
        seen[row.key] += 1


def _answer(row: RowRecord) -> str:
    outcome = row.outcome
    if outcome.error is not None:
        return f"failed: {outcome.error}"
    return "no answer" if outcome.answer is None else shown(outcome.answer)
