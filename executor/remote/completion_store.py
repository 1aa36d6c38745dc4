"""Answers of servers, cached by the key of their request: a run that is resumed or repeated sends nothing twice."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

from qpdsl.executor.foreign.plain_tables import check_tables
from qpdsl.executor.remote.server.address import Address

# "qpdc", which marks the file, and the version of its table.
_APPLICATION, _VERSION = 0x71706463, 1
_BEGINNING = b"SQLite format 3\0"
# Seconds that another process may hold the file before it counts as failed.
_BUSY = 10.0
# How often the ages of what was read are written, in reads.
_TOUCHES = 256
# So much of the room is used after the oldest answers left.
_FILLED = 0.9
# Bytes of the header of an SQLite file.
_HEADER = 100
MAX_BYTES = 2 << 30


def request_key(address: Address, version: str, path: str, body: Mapping[str, Any], more: Sequence[Any] = ()) -> bytes:
    """32 bytes that depend on all that an answer depends on.

    `body` is what is sent, without what asks for a stream; `more` is what decides beside it which answer it is.
    """
    parts = [address.dialect, address.url, version, path, body, list(more)]
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return blake2b(text.encode(), digest_size=32).digest()


def begins_store(file: BinaryIO) -> bool:
    """Whether an open file is an SQLite file that may hold completions, as far as its header tells."""
    header = file.read(_HEADER)
    # What says whose file it is may still stand in the log beside the file.
    return header.startswith(_BEGINNING) and header[68:72] in (bytes(4), _APPLICATION.to_bytes(4, "big"))


class StoreError(Exception):
    """A file that cannot hold completions; the message says why."""


class CompletionStore:
    """Bytes by key, in an SQLite file that several processes may use at once.

    What `keep` was given is there after a crash of the process, once it has returned. Beyond `most_bytes` of answers
    those leave that nobody has asked for the longest. A file that fails later (a full disk) is not used any more:
    `failure` says why, `find` finds nothing and `keep` does nothing. Raises StoreError for a file that is another.
    """

    def __init__(self, path: Path, most_bytes: int = MAX_BYTES) -> None:
        self.path = path
        self.failure: str | None = None
        self._most = most_bytes
        self._touched: dict[bytes, int] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # What models wrote for one user is not for the others.
            with open(os.open(path, os.O_CREAT | os.O_RDWR, 0o600), "rb") as file:
                beginning = file.read(len(_BEGINNING))
            self._file = sqlite3.connect(path, timeout=_BUSY, isolation_level=None, check_same_thread=False)
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"completions cannot be cached in `{path}`: {error}") from error
        try:
            # SQLite takes a file of a few bytes for an empty one.
            if beginning and beginning != _BEGINNING:
                raise StoreError("it is another kind of file")
            self._prepare()
        except (sqlite3.Error, StoreError) as error:
            self._file.close()
            words = f"completions cannot be cached in `{path}`: {error}; move the file, or name another"
            raise StoreError(words) from error

    def find(self, key: bytes) -> bytes | None:
        """What was kept under a key."""
        if self.failure is not None:
            return None
        try:
            row = self._file.execute("SELECT answer FROM completions WHERE key = ?", (key,)).fetchone()
        except sqlite3.Error as error:
            self._fail(error)
            return None
        if row is None:
            return None
        self._touched[key] = time.time_ns()
        if len(self._touched) >= _TOUCHES:
            self._touch()
        # In a damaged file a column has any type.
        return row[0] if isinstance(row[0], bytes) else None

    def keep(self, key: bytes, answer: bytes) -> None:
        """Keeps an answer; a later one under the same key takes its place."""
        if self.failure is not None:
            return
        try:
            self._file.execute("BEGIN IMMEDIATE")
            try:
                self._put(key, answer)
            except BaseException:
                with suppress(sqlite3.Error):
                    self._file.execute("ROLLBACK")
                raise
            self._file.execute("COMMIT")
        except sqlite3.Error as error:
            self._fail(error)

    def close(self) -> None:
        """Closes the file."""
        if self.failure is None:
            self._touch()
        with suppress(sqlite3.Error):
            self._file.close()

    def _prepare(self) -> None:
        run = self._file.execute
        (application,) = run("PRAGMA application_id").fetchone()
        (version,) = run("PRAGMA user_version").fetchone()
        (tables,) = run("SELECT COUNT(*) FROM sqlite_schema").fetchone()
        if (tables or application) and (application, version) != (_APPLICATION, _VERSION):
            raise StoreError("it is another kind of file")
        check_tables(self._file, ("completions", "room") if tables else ())
        run("PRAGMA journal_mode = WAL")
        # A crash of the machine may lose the last answers, which are asked for again; one of the process loses none.
        run("PRAGMA synchronous = NORMAL")
        run("BEGIN IMMEDIATE")
        run(
            "CREATE TABLE IF NOT EXISTS completions "
            "(key BLOB PRIMARY KEY, answer BLOB NOT NULL, used INTEGER NOT NULL) WITHOUT ROWID"
        )
        run("CREATE INDEX IF NOT EXISTS by_use ON completions (used)")
        run("CREATE TABLE IF NOT EXISTS room (bytes INTEGER NOT NULL)")
        run("INSERT INTO room SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM room)")
        run(f"PRAGMA application_id = {_APPLICATION}")
        run(f"PRAGMA user_version = {_VERSION}")
        run("COMMIT")

    def _put(self, key: bytes, answer: bytes) -> None:
        run = self._file.execute
        before = run("SELECT LENGTH(answer) FROM completions WHERE key = ?", (key,)).fetchone()
        more = len(answer) - (before[0] if before else 0)
        run("INSERT OR REPLACE INTO completions VALUES (?, ?, ?)", (key, answer, time.time_ns()))
        (size,) = run("UPDATE room SET bytes = bytes + ? RETURNING bytes", (more,)).fetchone()
        if size > self._most:
            self._make_room(size)

    def _make_room(self, size: int) -> None:
        self._write_touched()
        oldest = self._file.execute("SELECT key, LENGTH(answer) FROM completions ORDER BY used").fetchall()
        gone: list[tuple[bytes]] = []
        for key, length in oldest:
            if size <= self._most * _FILLED:
                break
            gone.append((key,))
            size -= length
        self._file.executemany("DELETE FROM completions WHERE key = ?", gone)
        self._file.execute("UPDATE room SET bytes = ?", (size,))

    def _touch(self) -> None:
        try:
            self._file.execute("BEGIN IMMEDIATE")
            self._write_touched()
            self._file.execute("COMMIT")
        except sqlite3.Error as error:
            self._fail(error)

    def _write_touched(self) -> None:
        rows = [(moment, key) for key, moment in self._touched.items()]
        self._file.executemany("UPDATE completions SET used = ? WHERE key = ?", rows)
        self._touched.clear()

    def _fail(self, error: sqlite3.Error) -> None:
        self.failure = f"completions are no longer cached, as `{self.path}` failed: {error}"
        with suppress(sqlite3.Error):
            self._file.rollback()
