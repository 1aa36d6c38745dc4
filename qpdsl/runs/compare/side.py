"""One side of a comparison, a saved run or several that differ in their seeds alone; and how two sides were set up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from qpdsl.errors import UsageError
from qpdsl.planner.values.value import shown
from qpdsl.runs.statistics import share_right
from qpdsl.runs.store.fingerprint import changes
from qpdsl.runs.store.measured import operators_of
from qpdsl.runs.store.run_file import RunFile
from qpdsl.runs.store.run_folder import RunFolder
from qpdsl.runs.store.run_record import RowRecord, RunInfo, RunRecord

# Between the runs of a side, on a command line.
BETWEEN = ","

# Parts of a fingerprint of which the record says more, and those that name a model.
_TOLD = {"program", "arguments", "seed", "plan", "policy"}
_DIGESTS = {"python"}
_MODEL = "model `"


@dataclass(frozen=True, slots=True)
class SavedRun:
    """A saved run with its finished rows, in the order of the input. `path` is its file; see `operators_of`."""

    path: Path
    info: RunInfo
    rows: tuple[RowRecord, ...]
    operators: tuple[Mapping[str, Any], ...] = ()

    @property
    def record(self) -> RunRecord:
        return self.info.record


@dataclass(frozen=True, slots=True)
class ComparedProblem:
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
    def thought_tokens(self) -> float:
        return fmean(row.outcome.thought_tokens for row in self.rows)

    @property
    def engine_seconds(self) -> float:
        return fmean(row.outcome.engine_seconds for row in self.rows)


@dataclass(frozen=True)
class Side:
    """Runs of one set-up, each with a seed of its own, and the problems that all of them have finished."""

    runs: tuple[SavedRun, ...]

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
    def problems(self) -> tuple[ComparedProblem, ...]:
        """The problems in the order of the first run."""
        others = [dict(_numbered(run.rows)) for run in self.runs[1:]]
        return tuple(
            ComparedProblem((row, *(other[key] for other in others)))
            for key, row in _numbered(self.runs[0].rows)
            if all(key in other for other in others)
        )

    @property
    def unfinished(self) -> list[SavedRun]:
        """Runs that have not all rows of their input."""
        return [run for run in self.runs if len(run.rows) < run.record.rows]


def read_run(path: Path) -> SavedRun:
    """A saved run. Raises UsageError where it cannot be read."""
    with RunFile.reading(path) as run:
        return SavedRun(path, run.info(), tuple(run.rows()), tuple(operators_of(run)))


def read_side(name: str, folder: RunFolder) -> Side:
    """The runs that a side names, parted by commas, as `RunFolder.find` finds them.

    Raises UsageError where one cannot be found or read, or where they differ in more than the seed.
    """
    return side_of([read_run(folder.find(part.strip())) for part in name.split(BETWEEN)])


def side_of(runs: Sequence[SavedRun]) -> Side:
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


@dataclass(frozen=True, slots=True)
class SetupChange:
    """A part of the set-up as it was on either side, for people. Both are empty where the values say nothing."""

    name: str
    first: str = ""
    second: str = ""


@dataclass(frozen=True, slots=True)
class Setup:
    """What differs: by name, and lines of unified diffs of the program's text and of the plan as EXPLAIN shows it.

    `same_noise`: the same seeds and models, so that both sides drew by the same random numbers wherever the text before
    a sample was the same.
    """

    changes: tuple[SetupChange, ...]
    source: tuple[str, ...]
    plan: tuple[str, ...]
    same_noise: bool


def setup(first: Side, second: Side) -> Setup:
    """How the set-ups of two sides differ."""
    one, other = first.record, second.record
    return Setup(
        changes=tuple(_setup_changes(first, second)),
        source=_diff(one.source, other.source),
        plan=_diff(one.plan, other.plan),
        same_noise=_draws(first) == _draws(second),
    )


def _setup_changes(first: Side, second: Side) -> Iterator[SetupChange]:
    one, other = first.record, second.record
    yield from _named("program", one.program, other.program)
    if one.source == other.source and one.fingerprint.get("program") != other.fingerprint.get("program"):
        yield SetupChange("what the program reads")
    yield from _parts("", one.parameters, other.parameters)
    yield from _parts("model ", one.models, other.models)
    for name in one.models.keys() & other.models.keys():
        key = f"{_MODEL}{name}`"
        if one.models[name] == other.models[name] and one.fingerprint.get(key) != other.fingerprint.get(key):
            yield SetupChange(f"files of model {name}")
    yield from _named("seed", _seeds(first), _seeds(second))
    yield from _named("rules", one.planned, other.planned)
    if one.policy != other.policy:
        yield SetupChange("budget", _policy(one), _policy(other))
    yield from _named("grader", one.grader, other.grader)
    yield from _named("input", one.input, other.input)
    if one.input == other.input and one.input_digest != other.input_digest:
        yield SetupChange("what the input holds")
    yield from _build(one.fingerprint, other.fingerprint)
    yield from _named("machine", one.machine, other.machine)


def _named(name: str, first: Any, second: Any) -> Iterator[SetupChange]:
    if first != second:
        yield SetupChange(name, shown(first), shown(second))


def _parts(prefix: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[SetupChange]:
    for name in dict.fromkeys((*first, *second)):
        if name not in first or name not in second or first[name] != second[name]:
            texts = (shown(side[name]) if name in side else "not set" for side in (first, second))
            yield SetupChange(f"{prefix}{name}", *texts)


def _seeds(side: Side) -> str:
    return ", ".join(map(str, side.seeds))


def _policy(record: RunRecord) -> str:
    """The budget that a policy keeps, as far as it says so."""
    if record.policy is None:
        return "none"
    budget, unit = record.policy.get("budget"), record.policy.get("unit")
    return f"{budget} {unit}" if budget is not None and unit is not None else "another policy"


def _build(first: Mapping[str, str], second: Mapping[str, str]) -> Iterator[SetupChange]:
    """What the runs were computed with, as far as nothing else says it; of lists the parts that differ."""
    for name in dict.fromkeys((*first, *second)):
        before, after = first.get(name, "default"), second.get(name, "default")
        if before == after or name in _TOLD or name.startswith(_MODEL):
            continue
        if name in _DIGESTS:
            yield SetupChange(name)
        else:
            one, other = before.split(", "), after.split(", ")
            yield SetupChange(
                name,
                ", ".join(part for part in one if part not in other),
                ", ".join(part for part in other if part not in one),
            )


def _draws(side: Side) -> tuple[object, ...]:
    """What random numbers depend on, besides the text before a sample."""
    fingerprint = side.record.fingerprint
    models = {name: value for name, value in fingerprint.items() if name.startswith(_MODEL)}
    return sorted(side.seeds), fingerprint.get("noise"), side.record.models, models


def _diff(first: str, second: str) -> tuple[str, ...]:
    """The lines of a unified diff, without the two that name the files; empty for equal texts."""
    return tuple(unified_diff(first.splitlines(), second.splitlines(), lineterm="", n=2))[2:]
