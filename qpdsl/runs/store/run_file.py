"""The lock on a run: one process writes it. It ends with the process, however that ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, fields
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, Self

from qpdsl.errors import UsageError, reason
from qpdsl.executor.foreign.plain_tables import check_tables
from qpdsl.output import sync_folder
from qpdsl.planner.values.value import dumps
from qpdsl.runs.row_outcome import Outcome
from qpdsl.runs.store.run_record import RowRecord, RunInfo, RunRecord, Status, Totals

LOCK_SUFFIX = ".lock"
# Whoever looks whether a run is locked has its lock for a moment.
_TRIES, _WAIT = 10, 0.02

SUFFIX = ".qprun"
FORMAT = 1
# What tells such a file from other SQLite files, which hold completions.
_APPLICATION = int.from_bytes(b"qpru", "big")
_SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL, digest BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE rows (number INTEGER PRIMARY KEY, data BLOB NOT NULL, digest BLOB NOT NULL);
CREATE TABLE events (at REAL NOT NULL, kind TEXT NOT NULL, data TEXT NOT NULL);
"""
# Made with the first row of which samples are saved.
_SAMPLES = "CREATE TABLE IF NOT EXISTS samples (number INTEGER PRIMARY KEY, data BLOB NOT NULL, digest BLOB NOT NULL)"
# Made with the first call of a tool: what came of each, empty while it is under way.
_CALLS = (
    "CREATE TABLE IF NOT EXISTS calls (key TEXT PRIMARY KEY, data BLOB NOT NULL, digest BLOB NOT NULL) WITHOUT ROWID"
)
_TABLES = ("meta", "rows", "events")
_PUT_META = "INSERT OR REPLACE INTO meta VALUES (?, ?, ?)"
_PUT_ROW = "INSERT OR REPLACE INTO rows VALUES (?, ?, ?)"
_PUT_CALL = "INSERT OR REPLACE INTO calls VALUES (?, ?, ?)"
_PUT_SAMPLES = "INSERT OR REPLACE INTO samples VALUES (?, ?, ?)"


def locked(path: Path) -> int:
    """Locks the run in a file, which need not exist yet, and returns the handle for `unlock`.

    The lock is on a file beside it: SQLite loses its own locks where another handle of the database is closed. Raises
    UsageError where another process has it, and where the file system has no locks.
    """
    place = _place(path)
    for left in reversed(range(_TRIES)):
        try:
            handle = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            raise UsageError(f"cannot write `{place}`: {reason(error)}") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever had it may have removed the file since it was opened.
            if os.path.samestat(os.fstat(handle), os.stat(place)):
                return handle
        except FileNotFoundError:
            pass
        except OSError as error:
            os.close(handle)
            if error.errno != errno.EWOULDBLOCK:
                raise UsageError(f"cannot lock `{path}`: {reason(error)}") from error
            if not left:
                break
            time.sleep(_WAIT)
            continue
        os.close(handle)
    raise UsageError(f"another process is writing `{path}` now", "wait for it or stop it")


def unlock(path: Path, handle: int) -> None:
    """Ends a lock."""
    with contextlib.suppress(OSError):
        _place(path).unlink(missing_ok=True)
    os.close(handle)


def is_locked(path: Path) -> bool:
    """Whether a process writes the run in a file now."""
    try:
        handle = os.open(_place(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except OSError as error:
        return error.errno == errno.EWOULDBLOCK
    finally:
        os.close(handle)


def _place(path: Path) -> Path:
    return path.with_name(path.name + LOCK_SUFFIX)


class RunFileError(UsageError):
    """A file that is no run, or one that cannot be read."""


class RunFile:
    """One run's file, open for reading, or for the one process that writes it. A context manager, which closes it."""

    def __init__(self, path: Path, database: sqlite3.Connection, lock: int | None) -> None:
        self.path = path
        self._database = database
        self._lock = lock
        self.record = _record(self._meta("record"))
        self._key = self.record.key.encode()
        self._totals = Totals(**self._meta("totals"))

    @classmethod
    def create(cls, path: Path, record: RunRecord) -> Self:
        """A new file, locked. Raises UsageError where it is there already or cannot be written."""
        part = _part_of(path)
        lock = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = locked(path)
            _made(part, record)
            # The name is taken where another run has it; a reader never sees half a file.
            os.link(part, path)
            sync_folder(path.parent)
            made = cls(path, _connected(path, "write"), lock)
            made.event("begun")
            return made
        except BaseException as error:
            if lock is not None:
                unlock(path, lock)
            if isinstance(error, sqlite3.Error | OSError):
                raise _unwritable(path, error) from error
            raise
        finally:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)

    @classmethod
    def reading(cls, path: Path) -> Self:
        """A run that another process may be writing. Raises RunFileError."""
        return cls._opened(path, None)

    @classmethod
    def glance(cls, path: Path) -> RunInfo:
        """The `info` of a run, as quickly as it can be had. Raises RunFileError."""
        if not files_of(path)[1].exists() and not is_locked(path):
            # Nobody writes it, so nothing of SQLite's that keeps writers and readers apart is needed.
            with contextlib.suppress(RunFileError), cls._opened(path, None, quick=True) as run:
                return run.info()
        with cls.reading(path) as run:
            return run.info()

    @classmethod
    def writing(cls, path: Path) -> Self:
        """A run to go on with, locked. Raises RunFileError, and UsageError where another process writes it."""
        if not path.is_file():
            raise RunFileError(f"there is no file `{path}`")
        lock = locked(path)
        try:
            # Of a process that was killed while it began the run: a second name of the same file.
            with contextlib.suppress(OSError):
                _part_of(path).unlink(missing_ok=True)
            run = cls._opened(path, lock)
            run._set(status="running", ended=None)
        except BaseException:
            unlock(path, lock)
            raise
        return run

    @classmethod
    def _opened(cls, path: Path, lock: int | None, *, quick: bool = False) -> Self:
        if not path.is_file():
            raise RunFileError(f"there is no file `{path}`")
        database = None
        try:
            database = _connected(path, "quick" if quick else "read" if lock is None else "write")
            if (version := _format(database)) != FORMAT:
                raise RunFileError(f"`{path}` was written by another version of qpdsl (format {version})")
            return cls(path, database, lock)
        except BaseException as error:
            if database is not None:
                database.close()
            if isinstance(error, sqlite3.Error | ValueError | TypeError | KeyError):
                raise RunFileError(f"`{path}` is no saved run, or it is damaged: {error}") from error
            raise

    @property
    def id(self) -> str:
        return self.path.name.removesuffix(SUFFIX)

    def add(self, *rows: RowRecord) -> None:
        """Records finished rows, all or none; when this returns, nothing undoes it. It waits for the disk once.

        Raises UsageError where they cannot be written, and ValueError where the run has a row of such a number.
        """
        totals = self._totals
        with self._changed() as database:
            for row in rows:
                if database.execute("SELECT 1 FROM rows WHERE number = ?", (row.number,)).fetchone():
                    raise ValueError(f"row {row.number} of run {self.id} is there already")
                self._put(row)
                totals = totals.with_row(row)
            self._put_meta("totals", asdict(totals))
        self._totals = totals

    def keep_only(self, rows: Iterable[RowRecord]) -> None:
        """Replaces the rows that there are by these, in one step; their samples stay. Raises UsageError."""
        totals = Totals()
        with self._changed() as database:
            database.execute("DELETE FROM rows")
            for row in rows:
                self._put(row)
                totals = totals.with_row(row)
            if self._saves_samples:
                database.execute("DELETE FROM samples WHERE number NOT IN (SELECT number FROM rows)")
            self._put_meta("totals", asdict(totals))
        self._totals = totals

    def rows(self) -> Iterator[RowRecord]:
        """The finished rows, in the order of the input; one that was damaged is left out. Raises RunFileError."""
        return (row for _, row in self.checked_rows() if row is not None)

    def checked_rows(self) -> Iterator[tuple[int, RowRecord | None]]:
        """The number of each row with the row, or with None where it was damaged. Raises RunFileError."""
        for number, data, written in self._read("SELECT number, data, digest FROM rows ORDER BY number"):
            yield number, self._row(number, data) if _is_intact(data, written, self._key) else None

    def samples(self, number: int) -> bytes | None:
        """The samples of a row (`RowSamples.decoded` reads them); None where none are saved, or they were damaged.

        Raises RunFileError.
        """
        if self._saves_samples:
            for data, written in self._read("SELECT data, digest FROM samples WHERE number = ?", number):
                return data if _is_intact(data, written, self._key) else None
        return None

    def call(self, key: str) -> str | None:
        """What came of the call of a tool, empty where it was begun; None where it was not. Raises RunFileError.

        One that was damaged was begun.
        """
        if not self._has("calls"):
            return None
        for data, written in self._read("SELECT data, digest FROM calls WHERE key = ?", key):
            return data.decode() if _is_intact(data, written, self._key + key.encode()) else ""
        return None

    def keep_call(self, key: str, answer: str) -> None:
        """Keeps what came of the call of a tool, or that it was begun; when this returns, nothing undoes it.

        Raises UsageError.
        """
        with self._changed() as database:
            database.execute(_CALLS)
            database.execute(_PUT_CALL, (key, (data := answer.encode()), _digest(data, self._key + key.encode())))

    def samples_size(self) -> tuple[int, int]:
        """Of how many rows samples are saved, and how many bytes these take. Raises RunFileError."""
        if not self._saves_samples:
            return 0, 0
        ((rows, size),) = self._read("SELECT COUNT(*), COALESCE(SUM(LENGTH(data)), 0) FROM samples")
        return int(rows), int(size)

    @property
    def _saves_samples(self) -> bool:
        return self._has("samples")

    def _has(self, table: str) -> bool:
        return any(self._read("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?", table))

    def revise(self, record: RunRecord) -> None:
        """Replaces the record by one with the same key: a run that goes on may have more rows. Raises UsageError."""
        if record.key != self.record.key:
            raise ValueError("the record of another run")
        self._set(record=asdict(record))
        self.record = record

    def event(self, kind: str, **data: Any) -> None:
        """Records that something happened to the run. Raises UsageError."""
        with self._changed() as database:
            database.execute("INSERT INTO events VALUES (?, ?, ?)", (time.time(), kind, _encoded(data)))

    def events(self) -> list[tuple[float, str, Mapping[str, Any]]]:
        """When, what, and more about it, oldest first. Raises RunFileError."""
        try:
            return [
                (float(at), kind.decode(), dict(json.loads(data)))
                for at, kind, data in self._read("SELECT * FROM events ORDER BY rowid")
            ]
        except (ValueError, TypeError, AttributeError) as error:
            raise RunFileError(f"`{self.path}` is damaged: {error}") from error

    def end(self, status: Status, summary: Mapping[str, Any] | None = None) -> None:
        """Says how the run ended, and what it came to. Raises UsageError."""
        self._set(status=status, ended=time.time(), summary=dict(summary or {}))
        self.event(status)

    def info(self) -> RunInfo:
        """What a list of runs shows, without reading the rows. Raises RunFileError."""
        return RunInfo(
            id=self.id,
            record=self.record,
            status=self._meta("status"),
            totals=Totals(**self._meta("totals")),
            ended=self._meta("ended", needed=False),
            writing=self._lock is not None or is_locked(self.path),
            summary=self._meta("summary", needed=False) or {},
        )

    def close(self) -> None:
        """Closes the file, and ends the lock."""
        self._database.close()
        if self._lock is not None:
            unlock(self.path, self._lock)
            self._lock = None

    def remove(self) -> None:
        """Closes and deletes the file, of which this process has the lock. Raises UsageError."""
        assert self._lock is not None
        self._database.close()
        try:
            delete(self.path)
            sync_folder(self.path.parent)
        except OSError as error:
            raise UsageError(f"cannot remove `{self.path}`: {reason(error)}") from error
        finally:
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _row(self, number: int, data: bytes) -> RowRecord | None:
        values = json.loads(data)
        try:
            row = RowRecord(**{**values, "outcome": Outcome(**values["outcome"])})
        except (KeyError, TypeError):
            # Its fields are those of another version.
            return None
        return row if row.number == number else None

    def _put(self, row: RowRecord) -> None:
        values = {field.name: getattr(row, field.name) for field in fields(row)}
        data = _encoded({**values, "outcome": row.outcome.to_json()})
        self._database.execute(_PUT_ROW, (row.number, data, _digest(data, self._key)))
        if (samples := row.outcome.samples) is not None:
            self._database.execute(_SAMPLES)
            self._database.execute(_PUT_SAMPLES, (row.number, samples, _digest(samples, self._key)))

    def _meta(self, name: str, *, needed: bool = True) -> Any:
        """What the file says of the run, None where it does not and need not. Raises RunFileError."""
        for value, written in self._read("SELECT value, digest FROM meta WHERE name = ?", name):
            if not _is_intact(value, written):
                raise RunFileError(f"`{self.path}` is damaged: what it says of the run is not what was written")
            return json.loads(value)
        if needed:
            raise RunFileError(f"`{self.path}` is damaged: it does not say what the run's {name} is")
        return None

    def _put_meta(self, name: str, value: object) -> None:
        self._database.execute(_PUT_META, _meta_row(name, value))

    def _set(self, **values: object) -> None:
        with self._changed():
            for name, value in values.items():
                self._put_meta(name, value)

    @contextlib.contextmanager
    def _changed(self) -> Iterator[sqlite3.Connection]:
        """One transaction: all that the block changes, or nothing. Raises UsageError."""
        try:
            with self._database:
                yield self._database
        except (sqlite3.Error, OSError) as error:
            raise _unwritable(self.path, error) from error

    def _read(self, query: str, *values: object) -> Iterator[tuple[Any, ...]]:
        try:
            # Not `yield from`: that closes the cursor of whoever stops early, maybe after the database is closed.
            for row in self._database.execute(query, values):  # noqa: UP028
                yield row
        except sqlite3.Error as error:
            raise RunFileError(f"`{self.path}` is damaged: {error}") from error


def files_of(path: Path) -> list[Path]:
    """The file of a run, and those that SQLite keeps beside it."""
    return [path, *(path.with_name(path.name + suffix) for suffix in ("-wal", "-shm"))]


def delete(path: Path) -> None:
    """Deletes the file of a run, and all that it or a process that was killed left beside it. Raises OSError."""
    for file in (_part_of(path), *files_of(path)):
        file.unlink(missing_ok=True)


def _part_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")


def _made(part: Path, record: RunRecord) -> None:
    """Writes the file of a run without rows. Raises sqlite3.Error."""
    with contextlib.closing(sqlite3.connect(part)) as database, database:
        database.execute(f"PRAGMA application_id = {_APPLICATION}")
        database.execute("PRAGMA journal_mode = WAL")
        database.executescript(_SCHEMA)
        values = {"format": FORMAT, "record": asdict(record), "status": "running", "totals": asdict(Totals())}
        database.executemany(_PUT_META, [_meta_row(name, value) for name, value in values.items()])


def _meta_row(name: str, value: object) -> tuple[str, bytes, bytes]:
    data = _encoded(value)
    return name, data, _digest(data)


def _encoded(value: object) -> bytes:
    # Half a surrogate pair in a field of the user's is no text, and is kept all the same.
    return dumps(value).encode("utf-8", "surrogatepass")


def _digest(data: bytes, key: bytes = b"") -> bytes:
    return blake2b(data, digest_size=16, key=key).digest()


def _is_intact(data: object, written: object, key: bytes = b"") -> bool:
    """Whether data is what was written with that digest. In a damaged file a column has any type."""
    return isinstance(data, bytes) and written == _digest(data, key)


def _record(values: Mapping[str, Any]) -> RunRecord:
    return RunRecord(**{**values, "command": tuple(values["command"])})


def _format(database: sqlite3.Connection) -> object:
    found = database.execute("SELECT value FROM meta WHERE name = 'format'").fetchone()
    return json.loads(found[0]) if found else 0


def _connected(path: Path, way: Literal["write", "read", "quick"]) -> sqlite3.Connection:
    """Raises sqlite3.Error. To read quickly is for a file that nobody writes."""
    # A reader, too, writes the files beside a database in WAL mode, and the last one removes them if it may.
    mode = "ro&immutable=1" if way == "quick" else "rw"
    if way == "read" and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        mode = "ro" if any(map(Path.exists, files_of(path)[1:])) else "ro&immutable=1"
    place = f"{path.absolute().as_uri()}?mode={mode}"
    database = sqlite3.connect(place, uri=True, timeout=30, check_same_thread=False)
    # A text that was damaged is no UTF-8, which would be an error of the whole query.
    database.text_factory = bytes
    try:
        database.execute("PRAGMA synchronous = FULL" if way == "write" else "PRAGMA query_only = ON")
        check_tables(database, _TABLES)
    except sqlite3.Error:
        database.close()
        raise
    return database


def _unwritable(path: Path, error: sqlite3.Error | OSError) -> UsageError:
    return UsageError(f"cannot write `{path}`: {reason(error) if isinstance(error, OSError) else error}")
