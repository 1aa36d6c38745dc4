"""Saved runs as tests find them, and runs as a kill leaves them behind."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from qpdsl.runs.data.input_row import InputData, InputRow
from qpdsl.runs.graders.grader import EqualAnswer
from qpdsl.runs.row_outcome import Outcome
from qpdsl.runs.store.recording import Recording
from qpdsl.runs.store.run_file import RunFile, RunFileError
from qpdsl.runs.store.run_folder import VARIABLE, RunFolder
from qpdsl.runs.store.run_record import RunRecord


@pytest.fixture(scope="session")
def _folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """New folders. `mktemp` would look through all that there are for each."""
    root = tmp_path_factory.mktemp("runs")
    return (root / str(number) for number in count())


@pytest.fixture(autouse=True)
def runs(_folders: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """An empty folder of runs for every test."""
    folder = RunFolder(next(_folders))
    folder.path.mkdir()
    monkeypatch.setenv(VARIABLE, str(folder.path))
    return folder


def rows_of_last(folder: RunFolder) -> int:
    """How many finished rows the newest run has, which another process may be writing; 0 where there is none."""
    with contextlib.suppress(RunFileError, IndexError), RunFile.reading(folder.file(folder.ids()[-1])) as run:
        return run.info().totals.done
    return 0


def cut_short(folder: RunFolder, rows: int) -> str:
    """Leaves of the newest run what a kill after so many rows leaves, and returns its id."""
    with RunFile.writing(folder.file(folder.ids()[-1])) as run:
        run.keep_only(list(run.rows())[:rows])
        return run.id


def damage_row(path: Path, number: int, data: bytes | None = None) -> None:
    """Changes what a run's file holds of a row: to `data`, or in one byte."""
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        (old,) = database.execute("SELECT data FROM rows WHERE number = ?", (number,)).fetchone()
        new = old[:20] + bytes([old[20] ^ 1]) + old[21:] if data is None else data
        database.execute("UPDATE rows SET data = ? WHERE number = ?", (new, number))


def outcome(number: int, **values: object) -> Outcome:
    """The outcome of row `number` of `inputs`."""
    usual = {"id": f"row {number}", "answer": str(number), "score": 0.5, "tokens_in": 1, "tokens_out": 2}
    return Outcome(**{**usual, "near_ties": 0, "seconds": 0.25, **values})  # type: ignore[arg-type]


def inputs(rows: int, digest: str = "d") -> InputData:
    """So many rows, whose right answers are their numbers."""
    made = (InputRow(f"row {n}", {"problem": f"problem {n}"}, str(n), {"level": n % 3}) for n in range(rows))
    return InputData(tuple(made), digest, name="in.jsonl")


def record(**values: object) -> RunRecord:
    """The record of a run over ten rows, with these values in place of the usual ones."""
    usual = {
        "program": "p", "source": "program p() {}", "parameters": {"n": 4}, "models": {"llm": "zoo/counting"},
        "seed": 0, "plan": "a plan", "planned": "optimized", "fingerprint": {"version": "1", "seed": "0"},
        "input": "in.jsonl", "input_digest": "d", "rows": 10, "grader": "equal 1", "started": 1.75e9, "machine": "m",
    }  # fmt: skip
    return RunRecord(**{**usual, **values})  # type: ignore[arg-type]


def recorded(folder: RunFolder, rows: int, *, end: bool = False, **values: object) -> str:
    """Keeps a run with outcomes for its first rows, and returns its id."""
    with Recording.begin(folder, record(**values), inputs(10), EqualAnswer()) as kept:
        for number in range(rows):
            kept.add(number, outcome(number, correct=True))
        if end:
            kept.end("finished")
        return kept.id
