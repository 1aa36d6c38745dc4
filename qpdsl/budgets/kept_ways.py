"""What kept runs tell of the ways of a program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from qpdsl.budgets.observations import UNSURE, Observations, by_spend
from qpdsl.dataset.row_outcome import Outcome
from qpdsl.planner.budget.budget_policy import Way
from qpdsl.run_store.fingerprint import Fingerprint, digest
from qpdsl.run_store.run_file import RunFile, RunFileError
from qpdsl.run_store.run_folder import RunFolder
from qpdsl.run_store.run_record import RowRecord, RunRecord

# The parts of a fingerprint in which a run of a way may differ: neither right answers nor tokens are others on average.
_OPEN = {"seed", "version", "noise", "options"}
# What decides how long a way takes, and no more.
_SPEED = {"plan", "device", "dtype", "kv type", "router", "deterministic", "compile"}
# A row of a run: the key of its problem, and the run's seed.
RowOfRun = tuple[str, int]


@dataclass(frozen=True)
class KeptWay:
    """The outcomes of a way by row, over all runs of it, and the names of the data that they ran over."""

    outcomes: dict[RowOfRun, Outcome] = field(default_factory=dict)
    inputs: set[str] = field(default_factory=set)


def kept_ways(
    fingerprints: Sequence[Fingerprint], unit: str, folder: RunFolder, models: Mapping[str, str] | None = None
) -> list[KeptWay]:
    """What the runs in `folder` have of each way; `fingerprints` has that of a plain run of each.

    A run is one of a way where its fingerprint is that of the way, whatever its seed and its build; for seconds also
    whatever it computed with must be the same. A part that `fingerprints` leave out is not compared. They lack the
    digests of models that must be loaded for it; `models` has the ids of these, which are compared. Where two runs have
    the same row, the newer one counts.
    """
    found = [KeptWay() for _ in fingerprints]
    for id in folder.ids():
        try:
            with RunFile.reading(folder.file(id)) as run:
                seen = run.record.fingerprint
                named = all(run.record.models.get(name) == model for name, model in (models or {}).items())
                matching = [way for way, own in enumerate(fingerprints) if named and _is_run_of(own, seen, unit)]
                rows = list(run.rows()) if matching else []
        except RunFileError:
            continue
        for way in matching:
            found[way].inputs.add(run.record.input)
            found[way].outcomes.update({(_problem(row, run.record), run.record.seed): row.outcome for row in rows})
    return found


def _problem(row: RowRecord, record: RunRecord) -> str:
    """What a problem is known by over ways. Widths can be arguments, so `row.key` differs between these."""
    return digest([row.outcome.id, row.asked or record.input_digest])


def observations(
    ways: Sequence[Way], kept: Sequence[KeptWay], unit: str, nested: Iterable[tuple[int, int]] = ()
) -> Observations | None:
    """The rows that the ways have in common with right or wrong answers, None where no way has any.

    A way of which nothing is kept is left out, and so is one that has less than half of what the others have in common:
    it would leave little to compare. `nested`: see `Observations`, with numbers of `ways`.
    """
    graded = {
        number: {row for row, outcome in way.outcomes.items() if outcome.correct is not None}
        for number, way in enumerate(kept)
    }
    common: set[RowOfRun] = set()
    used: list[int] = []
    for number in sorted(graded, key=lambda number: (-len(graded[number]), number)):
        shared = graded[number] & common if used else graded[number]
        if shared and 2 * len(shared) >= len(common):
            common = shared
            used.append(number)
    if not used:
        return None
    rows, used = sorted(common), sorted(used)
    place = {number: position for position, number in enumerate(used)}
    outcomes = [[kept[number].outcomes[row] for number in used] for row in rows]
    return by_spend(
        [ways[number] for number in used],
        [key for key, _ in rows],
        np.array([[float(outcome.correct is True) for outcome in row] for row in outcomes]),
        np.array([[spend(outcome, unit) for outcome in row] for row in outcomes]),
        np.array([[UNSURE if outcome.support is None else outcome.support for outcome in row] for row in outcomes]),
        frozenset((place[a], place[b]) for a, b in nested if a in place and b in place),
    )


def mean_spends(kept: Sequence[KeptWay], unit: str) -> Iterator[float | None]:
    """What each way took on average over all of its kept rows, None where there is none."""
    for way in kept:
        spends = [spend(outcome, unit) for outcome in way.outcomes.values()]
        yield sum(spends) / len(spends) if spends else None


def spend(outcome: Outcome, unit: str) -> float:
    """What a row took, in the unit of a budget: sampled tokens, seconds of the engine, or its price."""
    return _SPENDS[unit](outcome)


_SPENDS: Mapping[str, Callable[[Outcome], float]] = {
    "tokens": lambda outcome: float(outcome.tokens_out),
    "seconds": lambda outcome: outcome.engine_seconds,
    "cost": lambda outcome: outcome.cost,
}


def _is_run_of(own: Fingerprint, kept: Mapping[str, str], unit: str) -> bool:
    ignored = _OPEN if unit == "seconds" else _OPEN | _SPEED
    # What was switched on in the run alone counts too.
    added = {part for part in kept if part in _SPEED and part not in own} - ignored
    return not added and all(kept.get(part) == value for part, value in own.items() if part not in ignored)
