"""The promise that a damaged or edited line of a journal costs its row, which runs again, and nothing else."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qpdsl.cli.exits import Exit
from qpdsl.dataset.journal import Journal, journal_path
from qpdsl.dataset.row_outcome import Outcome
from qpdsl.errors import UsageError
from tests.support.cli import Run, write_rows

PRINT = {"version": "1", "seed": "0", "input": "abc"}
OTHER = {**PRINT, "seed": "1"}
ROWS = 6
IDS = [f"row {number}" for number in range(ROWS)]
MINI = """\
model llm = "zoo/counting-mini"
program mini(problem: text) -> text {
  chat user=problem
  generate llm n=1 temperature=0.9 max_tokens=6
  return text
}
"""


def outcome(number: int, answer: object) -> Outcome:
    return Outcome(id=IDS[number], answer=answer, score=0.5, tokens_in=1, tokens_out=2, near_ties=0, seconds=0.25)


def written(path: Path, fingerprint: dict[str, str], answers: list[object]) -> list[bytes]:
    """The lines of the journal of a run that was killed when these rows had finished."""
    path.unlink(missing_ok=True)
    journal = Journal(path)
    journal.begin(fingerprint)
    for number, answer in enumerate(answers):
        journal.add(number, outcome(number, answer))
    os.close(journal._handle)
    return path.read_bytes().splitlines(keepends=True)


def flipped(line: bytes, rng: random.Random) -> bytes:
    """Another byte somewhere in the line, which stays one line."""
    at = rng.randrange(len(line) - 1)
    other = rng.choice([byte for byte in range(256) if byte not in (line[at], 10)])
    return line[:at] + bytes([other]) + line[at + 1 :]


def edited(line: bytes, rng: random.Random) -> bytes:
    """A value changed by somebody who leaves the JSON in order."""
    record = json.loads(line)
    name = rng.choice(list(record))
    record[name] = rng.choice([None, 0, "x", {"id": "1"}, [], 10**30])
    return (json.dumps(record) + "\n").encode()


def cut(line: bytes, rng: random.Random) -> bytes:
    return line[: rng.randrange(len(line) - 1)] + b"\n"


def grown(line: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(line))
    return line[:at] + bytes(rng.choices(b' x{}"0,', k=3)) + line[at:]


DAMAGE: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "flipped": flipped,
    "edited": edited,
    "cut": cut,
    "grown": grown,
    "zeros": lambda line, rng: bytes(len(line) - 1) + b"\n",
    "joined": lambda line, rng: line[:-1],
    "gone": lambda line, rng: b"",
    "twice": lambda line, rng: line + line,
    "blank": lambda line, rng: b"\n" + line,
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8"), max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=2),
    max_leaves=4,
)


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qpdsl.dataset.journal.os.fsync", lambda handle: None)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=100)
@given(
    st.lists(JSON, min_size=1, max_size=ROWS),
    st.dictionaries(st.integers(0, ROWS), st.sampled_from(sorted(DAMAGE)), max_size=3),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_what_is_believed_is_what_was_written(
    tmp_path: Path, answers: list[object], damage: dict[int, str], shuffled: bool, seed: int
) -> None:
    """Line 0 is the header. Lines may also come from the journal of another run, and in any order."""
    path, rng = tmp_path / "j", random.Random(seed)
    foreign = written(path, OTHER, answers)
    lines = written(path, PRINT, answers)
    header, *rows = lines
    for number, how in damage.items():
        if number < len(lines):
            lines[number] = DAMAGE[how](lines[number], rng)
    body = lines[1:]
    if shuffled:
        body += foreign[1:]
        rng.shuffle(body)
    path.write_bytes(lines[0] + b"".join(body))
    left = path.read_bytes().splitlines(keepends=True)
    sound = {number for number, row in enumerate(rows) if row in left}

    journal = Journal(path)
    try:
        journal.read(PRINT, IDS)
    except UsageError as error:
        assert left[0] != header and not sound and "the first line" in error.message
        journal.close()
        return
    truth = {number: outcome(number, answer) for number, answer in enumerate(answers)}
    assert all(journal.done[number] == truth[number] for number in journal.done)
    assert set(journal.done) >= sound
    journal.begin(PRINT)
    for number in sorted(truth.keys() - journal.done.keys()):
        journal.add(number, truth[number])
    journal.close()
    again = Journal(path)
    again.read(PRINT, IDS)
    assert again.done == truth
    again.close()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose journal was left behind: `out.jsonl` and its journal, with the program and the input beside them."""
    from qpdsl.cli import main

    folder = tmp_path_factory.mktemp("finished")
    (folder / "mini.qp").write_text(MINI)
    write_rows(folder / "in.jsonl", [{"id": id, "problem": f"Mia has {id[-1]} boxes."} for id in IDS])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qpdsl.cli.runs.data_set_run.Journal.remove", lambda journal: os.close(journal._handle))
        patch.setattr("qpdsl.cli.runs.data_set_run.Journal.close", lambda journal: None)
        assert main(["run", *arguments(folder, folder / "out.jsonl")]) == Exit.OK
    return folder / "out.jsonl"


def arguments(folder: Path, output: Path) -> list[str]:
    return [str(folder / "mini.qp"), "--input", str(folder / "in.jsonl"), "--output", str(output), "--no-greedy"]


@pytest.mark.parametrize("seed", range(6))
def test_a_run_with_damaged_lines_ends_in_the_same_bytes(qpdsl: Run, finished: Path, tmp_path: Path, seed: int) -> None:
    rng, output = random.Random(seed), tmp_path / "out.jsonl"
    lines = journal_path(finished).read_bytes().splitlines(keepends=True)
    assert len(lines) == ROWS + 1
    hurt = sorted(rng.sample(range(1, len(lines)), 2))
    for number in hurt:
        lines[number] = rng.choice([flipped, edited, cut, grown])(lines[number], rng)
    journal_path(output).write_bytes(b"".join(lines))
    ran = qpdsl("run", *arguments(finished.parent, output), "--resume")
    assert ran.code == Exit.OK and output.read_bytes() == finished.read_bytes()
    named = f"lines {hurt[0] + 1}, {hurt[1] + 1} of `{journal_path(output)}` are damaged"
    assert named in ran.err and ran.err.startswith("warning: ")
