"""Completions in a file."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from qpdsl.executor.remote.completion_store import CompletionStore, StoreError
from tests.support.paths import ROOT


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")


def test_what_was_kept_is_found_again(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "completions.sqlite"
    store = CompletionStore(path)
    store.keep(key(1), b"one")
    store.keep(key(1), b"another")
    store.close()
    store = CompletionStore(path)
    assert (store.find(key(1)), store.find(key(2))) == (b"another", None)
    assert path.stat().st_mode & 0o077 == 0
    store.close()


def test_a_killed_process_loses_nothing_that_it_kept(tmp_path: Path) -> None:
    code = f"""
        import os
        from pathlib import Path
        from qpdsl.executor.remote.completion_store import CompletionStore
        store = CompletionStore(Path({str(tmp_path / "c.sqlite")!r}))
        for number in range(50):
            store.keep(number.to_bytes(32, "big"), b"answer")
        os.kill(os.getpid(), 9)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, check=False)
    assert done.returncode == -9
    store = CompletionStore(tmp_path / "c.sqlite")
    assert [store.find(key(number)) for number in range(51)] == [b"answer"] * 50 + [None]
    store.close()


def test_two_use_one_file(tmp_path: Path) -> None:
    first, second = CompletionStore(tmp_path / "c"), CompletionStore(tmp_path / "c")
    for number in range(20):
        (first if number % 2 else second).keep(key(number), b"answer")
    assert all(store.find(key(number)) for store in (first, second) for number in range(20))
    assert first.failure is None and second.failure is None
    first.close(), second.close()


def test_the_oldest_use_leaves(tmp_path: Path) -> None:
    store = CompletionStore(tmp_path / "c", most_bytes=1000)
    for number in range(10):
        store.keep(key(number), b"x" * 100)
    assert store.find(key(0)) is not None
    store.keep(key(10), b"x" * 100)
    assert store.find(key(0)) is not None and store.find(key(10)) is not None
    assert store.find(key(1)) is None and store.find(key(2)) is None
    store.close()


@pytest.mark.parametrize("content", [b"some text of somebody, which is no database at all", b"x"])
def test_another_file_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(StoreError, match="move the file, or name another"):
        CompletionStore(path)
    assert path.read_bytes() == content


def test_another_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE mine (x)")
    other.commit()
    other.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="it is another kind of file"):
        CompletionStore(path)
    assert path.read_bytes() == before


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be cached in"):
        CompletionStore(tmp_path)


def test_a_file_that_fails_is_told_and_not_used_any_more(tmp_path: Path) -> None:
    path = tmp_path / "c"
    store = CompletionStore(path)
    store.keep(key(1), b"one")
    store._file.execute("PRAGMA max_page_count = 1")
    store.keep(key(2), os.urandom(1 << 20))
    assert store.failure is not None and "full" in store.failure
    assert store.find(key(1)) is None
    store.keep(key(3), b"three")
    store.close()
    store = CompletionStore(path)
    assert (store.find(key(1)), store.find(key(2)), store.find(key(3))) == (b"one", None, None)
    store.close()
