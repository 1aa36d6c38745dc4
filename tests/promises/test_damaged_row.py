"""The promise that a damaged or edited row of a saved run runs again, and that nothing else is believed or lost."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qpdsl.cli.exits import Exit
from qpdsl.runs.graders.grader import EqualAnswer
from qpdsl.runs.store.recording import Recording
from qpdsl.runs.store.run_file import RunFile, RunFileError
from qpdsl.runs.store.run_folder import RunFolder
from tests.support.cli import Run, write_rows
from tests.support.saved_runs import inputs, outcome, record, recorded

ROWS = 6
MINI = """\
model llm = "zoo/counting-mini"
program mini(problem: text) -> text {
  chat user=problem
  generate llm n=1 temperature=0.9 max_tokens=6
  return text
}
"""


def flipped(data: bytes, rng: random.Random) -> bytes:
    """Another byte somewhere in the row."""
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ rng.randrange(1, 256)]) + data[at + 1 :]


def edited(data: bytes, rng: random.Random) -> bytes:
    """A value changed by somebody who leaves the JSON in order."""
    row = json.loads(data)
    place = rng.choice([row, row["outcome"]])
    name = rng.choice(list(place))
    place[name] = rng.choice([value for value in (None, 0, "x", {"id": "1"}, [], 10**30) if value != place[name]])
    return json.dumps(row).encode()


def cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data) - 1)]


def grown(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + bytes(rng.choices(b' x{}"0,', k=3)) + data[at:]


DAMAGE: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "flipped": flipped,
    "edited": edited,
    "cut": cut,
    "grown": grown,
    "zeros": lambda data, rng: bytes(len(data)),
    "empty": lambda data, rng: b"",
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8"), max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=2),
    max_leaves=4,
)


def changed(path: Path, change: Callable[[sqlite3.Connection], object]) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA synchronous = OFF")
        change(database)


# A byte of a damaged page says of which type a column is.
TYPES: dict[str, object] = {"text": "1", "no text": b"\xff\xfe", "number": 7, "float": 0.5, "nothing": None}


def retyped(path: Path, table: str, column: str, which: str, value: object) -> None:
    """Puts a value into a column that may hold any type then."""

    def change(database: sqlite3.Connection) -> None:
        names = [name for _, name, *_ in database.execute(f"PRAGMA table_info({table})")]
        database.execute(f"ALTER TABLE {table} RENAME TO old")
        key = "number INTEGER PRIMARY KEY" if table == "rows" else f"{names[0]}"
        database.execute(f"CREATE TABLE {table} ({', '.join([key, *names[1:]])})")
        database.execute(f"INSERT INTO {table} SELECT * FROM old")
        cast = "CAST(? AS TEXT)" if value == TYPES["no text"] else "?"
        assert database.execute(f"UPDATE {table} SET {column} = {cast} WHERE {which}", (value,)).rowcount

    changed(path, change)


@pytest.mark.parametrize("value", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize("column", ["data", "digest"])
def test_a_row_of_another_type_runs_again(runs: RunFolder, column: str, value: object) -> None:
    id = recorded(runs, 3)
    retyped(runs.file(id), "rows", column, "number = 1", value)
    with RunFile.reading(runs.file(id)) as run:
        assert [(number, row is None) for number, row in run.checked_rows()] == [(0, False), (1, True), (2, False)]
    with asyncio.run(Recording.resume(RunFile.writing(runs.file(id)), record(), inputs(10), EqualAnswer())) as kept:
        assert kept.continued.damaged == (1,) and set(kept.outcomes) == {0, 2}


@pytest.mark.parametrize("value", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize("column", ["value", "digest"])
@pytest.mark.parametrize("name", ["record", "totals", "status", "ended"])
def test_a_head_of_another_type_is_refused(runs: RunFolder, name: str, column: str, value: object) -> None:
    id = recorded(runs, 3, end=True)
    retyped(runs.file(id), "meta", column, f"name = '{name}'", value)
    with pytest.raises(RunFileError, match="damaged"):
        RunFile.glance(runs.file(id))


@pytest.mark.parametrize("value", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize("column", ["at", "kind", "data"])
def test_an_event_of_another_type_is_damaged_or_read(runs: RunFolder, column: str, value: object) -> None:
    id = recorded(runs, 3)
    retyped(runs.file(id), "events", column, "kind = 'begun'", value)
    with contextlib.suppress(RunFileError), RunFile.reading(runs.file(id)) as run:
        assert all((type(at), type(kind), type(data)) == (float, str, dict) for at, kind, data in run.events())


@pytest.mark.parametrize("name", ["record", "totals", "status"])
def test_a_head_that_is_lost_is_said_to_be(runs: RunFolder, name: str) -> None:
    id = recorded(runs, 3)
    changed(runs.file(id), lambda database: database.execute("DELETE FROM meta WHERE name = ?", (name,)))
    with pytest.raises(RunFileError, match=f"does not say what the run's {name} is"):
        RunFile.glance(runs.file(id))


@settings(max_examples=25)
@given(
    st.lists(JSON, min_size=1, max_size=ROWS),
    st.dictionaries(st.integers(0, ROWS - 1), st.sampled_from(sorted(DAMAGE)), max_size=3),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_what_is_believed_is_what_was_written(
    runs: RunFolder, answers: list[object], damage: dict[int, str], foreign: bool, seed: int
) -> None:
    """Rows may also come from the file of another run, or stand under another number."""
    rng, data = random.Random(seed), inputs(len(answers))
    truth = {number: outcome(number, answer=answer) for number, answer in enumerate(answers)}
    with Recording.begin(runs, record(), data, EqualAnswer()) as kept:
        for number, one in truth.items():
            kept.add(number, one)
    with Recording.begin(runs, record(fingerprint={"seed": "1"}), data, EqualAnswer()) as other:
        other.add(0, outcome(0, answer="of another seed"))
    path, hurt = kept.run.path, {number for number in damage if number < len(answers)}

    def hurts(database: sqlite3.Connection) -> None:
        for number in hurt:
            (old,) = database.execute("SELECT data FROM rows WHERE number = ?", (number,)).fetchone()
            new = DAMAGE[damage[number]](old, rng)
            database.execute("UPDATE rows SET data = ? WHERE number = ?", (new, number))
        if foreign:
            with contextlib.closing(sqlite3.connect(other.run.path)) as another:
                values = another.execute("SELECT data, digest FROM rows").fetchone()
            database.execute("INSERT OR REPLACE INTO rows VALUES (0, ?, ?)", values)
            database.execute("UPDATE rows SET number = 77 WHERE number = ?", (len(answers) - 1,))

    changed(path, hurts)
    sound = truth.keys() - hurt - ({0, len(answers) - 1} if foreign else set())
    run = RunFile.writing(path)
    with asyncio.run(Recording.resume(run, record(), data, EqualAnswer())) as kept:
        assert kept.outcomes == {number: truth[number] for number in sound}
        for number in [row.number for row in kept.left()]:
            kept.add(number, truth[number])
    with RunFile.reading(path) as run:
        assert {row.number: row.outcome for row in run.rows()} == truth
        assert run.info().totals.done == len(truth)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a program, an input, the run's file and its output."""
    from qpdsl.cli import main

    folder = tmp_path_factory.mktemp("whole")
    (folder / "mini.qp").write_text(MINI)
    write_rows(folder / "in.jsonl", [{"problem": f"Mia has {number} boxes."} for number in range(40)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QPDSL_RUNS", str(folder / "runs"))
        assert main(["run", *arguments(folder, folder / "out.jsonl")]) == Exit.OK
    return folder


def arguments(folder: Path, output: Path) -> list[str]:
    return [str(folder / "mini.qp"), "--input", str(folder / "in.jsonl"), "--output", str(output), "--no-greedy"]


def test_a_run_with_damaged_rows_ends_in_the_same_bytes(
    qpdsl: Run, whole: Path, runs: RunFolder, tmp_path: Path
) -> None:
    id, rng, output = RunFolder(whole / "runs").ids()[0], random.Random(1), tmp_path / "out.jsonl"
    shutil.copyfile(RunFolder(whole / "runs").file(id), runs.file(id))

    def hurts(database: sqlite3.Connection) -> None:
        for number, how in ((3, flipped), (17, edited)):
            (old,) = database.execute("SELECT data FROM rows WHERE number = ?", (number,)).fetchone()
            database.execute("UPDATE rows SET data = ? WHERE number = ?", (how(old, rng), number))

    changed(runs.file(id), hurts)
    with RunFile.writing(runs.file(id)):
        pass
    ran = qpdsl("run", *arguments(whole, output), "--resume")
    assert ran.code == Exit.OK and output.read_bytes() == (whole / "out.jsonl").read_bytes()
    assert f"warning: damaged in run `{id}`, and run again: rows `4`, `18`" in ran.err


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_overwritten_in_the_file_nothing_false_is_read(
    qpdsl: Run, whole: Path, runs: RunFolder, tmp_path: Path, seed: int
) -> None:
    """A stretch of the file: its rows are lost, or SQLite refuses all of it, and commands say so and go on."""
    rng, good = random.Random(seed), RunFolder(whole / "runs")
    (id,) = good.ids()
    with RunFile.reading(good.file(id)) as run:
        truth = {row.number: row for row in run.rows()}
    data = bytearray(good.file(id).read_bytes())
    at = rng.randrange(len(data))
    data[at : at + 200] = rng.randbytes(len(data[at : at + 200]))
    runs.file(id).write_bytes(data)
    try:
        with RunFile.reading(runs.file(id)) as run:
            assert all(truth[row.number] == row for row in run.rows())
    except RunFileError as error:
        assert str(runs.file(id)) in error.message
    listed = qpdsl("runs")
    assert listed.code == Exit.OK and (id in listed.out or "damaged" in listed.err)
    shown = qpdsl("runs", "show", id, "--rows")
    assert shown.code == Exit.OK or "damaged" in shown.err
    ran = qpdsl("runs", "rm", id, "--yes")
    assert ran.code == Exit.OK and runs.ids() == []
