"""The file of a run: whatever a kill leaves behind, no finished row is lost, and none is there twice."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from qpdsl.errors import UsageError
from qpdsl.runs.store.run_file import RunFile, RunFileError, is_locked, locked, unlock
from qpdsl.runs.store.run_folder import RunFolder
from qpdsl.runs.store.run_record import RowRecord, Totals
from tests.support.paths import ROOT
from tests.support.saved_runs import damage_row, outcome, record
from tests.support.timing import assert_quick

# Adds rows, so many at a time, until it is killed, each said on stdout once it is kept.
WRITER = """
import sys
from pathlib import Path
from qpdsl.runs.store.run_file import RunFile
from tests.support.saved_runs import outcome
from qpdsl.runs.store.run_record import RowRecord
with RunFile.writing(Path(sys.argv[1])) as run:
    together = int(sys.argv[2])
    for first in range(run.info().totals.done, 10_000, together):
        numbers = range(first, first + together)
        run.add(*(RowRecord(number=number, key="k", outcome=outcome(number)) for number in numbers))
        print(numbers[-1], flush=True)
"""


def row(number: int, **values: object) -> RowRecord:
    return RowRecord(number=number, key=f"key {number}", outcome=outcome(number, **values))


def test_what_was_added_is_there(runs: RunFolder) -> None:
    with runs.create(record()) as run:
        run.add(row(3, correct=True))
        run.add(row(1, correct=False, error="no answer"))
        run.end("finished", {"rows": 2})
        path = run.path
    with RunFile.reading(path) as run:
        assert run.record == record()
        assert list(run.rows()) == [row(1, correct=False, error="no answer"), row(3, correct=True)]
        info = run.info()
        assert info.totals == Totals(done=2, failed=1, correct=1, graded=2, tokens_in=2, tokens_out=4)
        assert (info.state, info.summary, info.writing) == ("finished", {"rows": 2}, False)
        assert [kind for _, kind, _ in run.events()] == ["begun", "finished"]
    assert [file.name for file in runs.path.iterdir()] == [path.name]


def test_what_a_kill_at_the_beginning_left_goes_with_the_run(runs: RunFolder) -> None:
    for way in ("go on", "remove"):
        with runs.create(record()) as run:
            path = run.path
        # Killed between giving the finished file its name and taking away the one it was made under.
        os.link(path, path.with_name(f".{path.name}.part"))
        if way == "go on":
            RunFile.writing(path).close()
            assert [file.name for file in runs.path.iterdir()] == [path.name]
        runs.remove(run.id)
        assert not [*runs.path.iterdir()]


def test_a_row_is_added_once(runs: RunFolder) -> None:
    with runs.create(record()) as run:
        run.add(row(3))
        with pytest.raises(ValueError, match="is there already"):
            run.add(row(3, correct=True))
        with pytest.raises(ValueError, match="is there already"):
            run.add(row(4), row(5), row(3))
        with pytest.raises(ValueError, match="is there already"):
            run.add(row(4), row(4))
        assert [one.number for one in run.rows()] == [3]
        assert run.info().totals.done == 1 and next(run.rows()).outcome.correct is None


def test_it_is_read_while_another_process_writes_it(runs: RunFolder) -> None:
    with runs.create(record()) as writer:
        for number in range(3):
            writer.add(row(number))
            with RunFile.reading(writer.path) as reader:
                assert len(list(reader.rows())) == reader.info().totals.done == number + 1
                assert reader.info().writing and reader.info().state == "running"
        assert runs.locked_ids() == [writer.id]


@pytest.mark.parametrize("together", [1, 7])
def test_a_killed_writer_leaves_every_row_that_it_said_was_kept(runs: RunFolder, together: int) -> None:
    with runs.create(record(rows=10_000)) as run:
        path = run.path
    said = 0
    for pause in (0.0, 0.03, 0.1):
        command = [sys.executable, "-c", WRITER, str(path), str(together)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(pause)
            process.send_signal(signal.SIGKILL)
            rest = process.stdout.read().splitlines()
        with RunFile.reading(path) as run:
            numbers = [row.number for row in run.rows()]
            assert numbers == list(range(len(numbers))) and run.info().totals.done == len(numbers)
            said = int(rest[-1]) + 1 if rest and rest[-1].isdigit() else said + 1
            assert len(numbers) >= said and len(numbers) % together == 0
            assert run.info().state == "stopped"
        said = len(numbers)


def test_two_processes_cannot_write_one_run(runs: RunFolder) -> None:
    with runs.create(record()) as run:
        with pytest.raises(UsageError, match="another process is writing"):
            RunFile.writing(run.path)
        with pytest.raises(UsageError, match="another process is writing"):
            runs.remove(run.id)
        run.add(row(0))
    with RunFile.writing(run.path) as again:
        assert [row.number for row in again.rows()] == [0]


def test_of_many_that_lock_at_once_one_has_it(tmp_path: Path) -> None:
    """Also while locks are removed: one on a file that is gone is none."""
    path, inside, most = tmp_path / "run", [0], [0]
    together = threading.Barrier(4)

    def lock_often() -> None:
        together.wait()
        for _ in range(20):
            with contextlib.suppress(UsageError):
                handle = locked(path)
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                is_locked(path)
                inside[0] -= 1
                unlock(path, handle)

    threads = [threading.Thread(target=lock_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] and not is_locked(path) and not list(tmp_path.iterdir())


def test_where_there_are_no_locks_the_run_is_refused(runs: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*given: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("qpdsl.runs.store.run_file.fcntl.flock", no_locks)
    with pytest.raises(UsageError, match=r"cannot lock .*: no locks available"):
        runs.create(record())


def test_a_row_that_could_not_be_written_leaves_no_trace(runs: RunFolder) -> None:
    with runs.create(record()) as run:
        run.add(row(0))
        pages = run._database.execute("PRAGMA page_count").fetchone()[0]
        run._database.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(UsageError, match=r"cannot write .*: database or disk is full"):
            run.add(row(1, answer="x" * 100_000))
        assert run.info().totals.done == 1
        run._database.execute(f"PRAGMA max_page_count = {pages + 100}")
        run.add(row(1))
    with RunFile.reading(run.path) as again:
        assert [row.number for row in again.rows()] == [0, 1]


def test_a_folder_that_cannot_be_written_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write") as caught:
        RunFolder(tmp_path / "file" / "runs").create(record())
    assert "QPDSL_RUNS names another folder" in (caught.value.help or "")


def test_a_damaged_row_is_not_believed(runs: RunFolder) -> None:
    with runs.create(record()) as run:
        for number in range(3):
            run.add(row(number))
    damage_row(run.path, 1)
    with RunFile.reading(run.path) as again:
        assert [row.number for row in again.rows()] == [0, 2]
        assert [(number, row is None) for number, row in again.checked_rows()] == [(0, False), (1, True), (2, False)]


def test_a_row_of_another_run_is_not_believed(runs: RunFolder) -> None:
    with runs.create(record(seed=1, fingerprint={"seed": "1"})) as other, runs.create(record()) as run:
        for one in (other, run):
            one.add(row(0))
    with contextlib.closing(sqlite3.connect(other.path)) as database:
        (digest,) = database.execute("SELECT digest FROM rows").fetchone()
    with contextlib.closing(sqlite3.connect(run.path)) as database, database:
        database.execute("UPDATE rows SET digest = ?", (digest,))
    with RunFile.reading(run.path) as again:
        assert list(again.rows()) == []


@pytest.mark.parametrize("content", [b"", b"notes\n", b"SQLite format 3\0" + bytes(4000)])
def test_a_foreign_file_is_refused_and_left(runs: RunFolder, content: bytes) -> None:
    runs.path.mkdir(exist_ok=True)
    path = runs.file("notes")
    path.write_bytes(content)
    for open_ in (RunFile.reading, RunFile.writing):
        with pytest.raises(RunFileError, match=str(path)):
            open_(path)
    assert path.read_bytes() == content and not is_locked(path)


def test_a_file_of_another_version_is_refused(runs: RunFolder) -> None:
    with runs.create(record()) as run:
        pass
    with contextlib.closing(sqlite3.connect(run.path)) as database, database:
        database.execute("UPDATE meta SET value = '99' WHERE name = 'format'")
    with pytest.raises(RunFileError, match=r"another version of qpdsl \(format 99\)"):
        RunFile.reading(run.path)


def test_a_run_in_a_folder_that_nobody_may_write_is_read(runs: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    with runs.create(record()) as run:
        run.add(row(0))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with RunFile.reading(run.path) as again:
        assert len(list(again.rows())) == 1


def test_a_hundred_thousand_rows_are_listed_at_once(runs: RunFolder) -> None:
    with runs.create(record(rows=100_000)) as run:
        run.keep_only(row(number, correct=True) for number in range(100_000))

    def seconds() -> float:
        start = time.monotonic()
        (info,) = runs.infos()
        assert info.totals.correct == 100_000
        return time.monotonic() - start

    assert_quick(seconds, 0.05)


def test_text_that_is_no_text_is_kept(runs: RunFolder) -> None:
    with runs.create(record()) as run:
        run.add(RowRecord(number=0, key="k", outcome=outcome(0), fields={"half": "\ud800"}))
        assert next(run.rows()).fields == {"half": "\ud800"}
