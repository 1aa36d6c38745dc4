"""The journal: whatever a kill leaves behind, no finished row is lost and no torn one is believed."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qpdsl.dataset.journal import Journal, begins_journal, check_free
from qpdsl.dataset.row_outcome import Outcome
from qpdsl.errors import UsageError
from tests.support.paths import ROOT

PRINT = {"version": "1", "seed": "0", "input": "abc"}
IDS = [str(number) for number in range(10)]


def outcome(number: int, text: str = "x") -> Outcome:
    return Outcome(
        id=str(number), answer=text, score=0.5, tokens_in=1, tokens_out=2, near_ties=0, seconds=0.25, correct=True
    )


def written(path: Path, outcomes: list[Outcome]) -> bytes:
    journal = Journal(path)
    journal.begin(PRINT)
    for number, one in enumerate(outcomes):
        journal.add(number, one)
    # As a run that is killed leaves it.
    os.close(journal._handle)
    return path.read_bytes()


def resumed(path: Path) -> Journal:
    journal = Journal(path)
    try:
        journal.read(PRINT, IDS)
        journal.begin(PRINT)
    except BaseException:
        journal.close()
        raise
    return journal


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=20), max_size=5), st.data())
def test_a_cut_anywhere_leaves_whole_rows(tmp_path: Path, texts: list[str], data: st.DataObject) -> None:
    path = tmp_path / "j"
    path.unlink(missing_ok=True)
    outcomes = [outcome(number, text) for number, text in enumerate(texts)]
    whole = written(path, outcomes)
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])

    journal = resumed(path)
    kept = len(journal.done)
    assert journal.done == dict(enumerate(outcomes[:kept])) and journal.damaged == []
    assert kept == max(0, whole[:cut].count(b"\n") - 1)
    for number in range(kept, len(outcomes)):
        journal.add(number, outcomes[number])
    assert path.read_bytes() == whole
    journal.close()


def test_every_row_is_on_disk_when_it_counts_as_done(tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal = Journal(path)
    journal.begin(PRINT)
    for number in range(3):
        journal.add(number, outcome(number))
        assert path.read_bytes().count(b"\n") == number + 2
    journal.remove()
    assert not path.exists()


def test_nothing_is_changed_before_the_run_begins(tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal = Journal(path)
    assert not journal.unfinished
    journal.close()
    assert not path.exists()
    before = written(path, [outcome(0)])
    journal = Journal(path)
    assert journal.unfinished
    journal.close()
    assert path.read_bytes() == before


def test_two_runs_cannot_share_a_journal(tmp_path: Path) -> None:
    path = tmp_path / "j"
    check_free(path)
    journal = Journal(path)
    journal.begin(PRINT)
    for open_ in (Journal, check_free):
        with pytest.raises(UsageError, match=r"another run is writing to .* now"):
            open_(path)
    journal.add(0, outcome(0))
    journal.close()
    check_free(path)
    resumed(path).close()


def test_of_many_that_start_at_once_one_writes(tmp_path: Path) -> None:
    """Also while journals are removed: a lock on a file that is gone is none."""
    path, inside, most = tmp_path / "j", [0], [0]
    together = threading.Barrier(4)

    def run() -> None:
        together.wait()
        for _ in range(40):
            try:
                journal = Journal(path)
            except UsageError:
                continue
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            journal.begin(PRINT)
            inside[0] -= 1
            journal.remove()

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] and not path.exists()


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "j"
    code = f"import os, fcntl; h = os.open({str(path)!r}, os.O_RDWR | os.O_CREAT); fcntl.flock(h, 2); os._exit(1)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)
    Journal(path).close()


def test_where_there_are_no_locks_the_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*given: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("qpdsl.dataset.journal.fcntl.flock", no_locks)
    with pytest.raises(UsageError, match=r"cannot lock .*: no locks available"):
        Journal(tmp_path / "j")


def test_a_row_that_could_not_be_written_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "j"
    journal = Journal(path)
    journal.begin(PRINT)
    journal.add(0, outcome(0))
    before = path.read_bytes()
    write = os.pwrite

    def full(handle: int, data: bytes, at: int) -> int:
        if at > len(before):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(handle, data[:10], at)

    with monkeypatch.context() as patch:
        patch.setattr("qpdsl.dataset.journal.os.pwrite", full)
        with pytest.raises(UsageError, match="no space left on device"):
            journal.add(1, outcome(1))
    assert path.read_bytes() == before
    journal.add(2, outcome(2))
    journal.close()
    again = resumed(path)
    assert set(again.done) == {0, 2} and again.damaged == []
    again.close()


def test_a_changed_run_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "j"
    before = written(path, [outcome(0)])
    journal = Journal(path)
    with pytest.raises(UsageError) as caught:
        journal.read({**PRINT, "seed": "1", "input": "abd"}, IDS)
    journal.close()
    assert "changed since it began: the seed (was 0, is 1), the input data" in caught.value.message
    assert path.read_bytes() == before


def test_rows_are_those_of_the_input(tmp_path: Path) -> None:
    """A sound line whose row is not in the input under that number and id is not used."""
    path = tmp_path / "j"
    written(path, [outcome(0), outcome(7), outcome(2)])
    journal = resumed(path)
    assert set(journal.done) == {0, 2} and journal.damaged == [3]
    journal.close()


def test_a_journal_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "j"
    old = '{"qpdsl_journal": 1, "fingerprint": {"seed": "0"}}\n{"row": 0, "outcome": {"id": "0"}}\n'
    path.write_text(old)
    with pytest.raises(UsageError, match="was written by another version of qpdsl"):
        resumed(path)
    assert path.read_text() == old
    with path.open("rb") as file:
        assert begins_journal(file)


@pytest.mark.parametrize("text", ['{"name": "something else"}\n', '{"qpdsl": 1}', "a\nb\n", '{"digest": "x"}\n'])
def test_a_foreign_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "j"
    path.write_text(text)
    with path.open("rb") as file:
        assert not begins_journal(file)
    if text.endswith("\n"):
        with pytest.raises(UsageError, match=re.escape("the first line")):
            resumed(path)
    assert path.read_text() == text
