"""Sides of comparisons, made in memory: rows that are right or wrong as a test says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qpdsl.runs.compare.side import SavedRun, Side, side_of
from qpdsl.runs.store.run_record import RowRecord, RunInfo, Totals
from tests.support.saved_runs import outcome, record

RIGHT = "42"


def row(number: int, answer: Any, *, key: str | None = None, **values: Any) -> RowRecord:
    """A row whose right answer is 42, with these fields of a row or of its outcome in place of the usual ones."""
    own = {name: values.pop(name) for name in ("asked", "reference", "fields") if name in values}
    usual = {"asked": f"problem {number}", "reference": RIGHT, "fields": {"level": number % 5}}
    made = outcome(number, **{"answer": answer, "correct": answer == RIGHT, "tokens_out": 100 + number % 7, **values})
    return RowRecord(number=number, key=key or f"key {number}", outcome=made, **{**usual, **own})


def kept(rows: Sequence[RowRecord], id: str = "run", **values: Any) -> SavedRun:
    """A finished run with these rows; `values` are fields of its record."""
    made = record(**{"rows": len(rows), **values})
    info = RunInfo(id=id, record=made, status="finished", totals=Totals(done=len(rows)))
    return SavedRun(Path(f"{id}.qprun"), info, tuple(rows))


def side(verdicts: Sequence[bool], id: str = "run", **values: Any) -> Side:
    """A run that answers as `verdicts` say: wrong answers are 0."""
    return side_of(
        [kept([row(number, RIGHT if right else "0") for number, right in enumerate(verdicts)], id, **values)]
    )


def seeds(verdicts: Sequence[Sequence[bool]], id: str = "run") -> Side:
    """A run a seed, each answering as its verdicts say."""
    runs = []
    for seed, own in enumerate(verdicts):
        rows = [row(number, RIGHT if right else "0") for number, right in enumerate(own)]
        fingerprint = {"version": "1", "seed": str(seed)}
        runs.append(kept(rows, f"{id}-{seed}", seed=seed, fingerprint=fingerprint))
    return side_of(runs)
