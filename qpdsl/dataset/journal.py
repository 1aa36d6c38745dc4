"""The journal of an unfinished run: every finished row, durable from the moment it counts as done.

JSON lines: a header with the fingerprint of the run, then a line for each row, in the order in which they finished.
A run that is killed leaves at most one torn line at the end, which is dropped when the run is resumed.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qpdsl.dataset.fingerprint import Fingerprint, changes
from qpdsl.dataset.json_values import dumps
from qpdsl.dataset.row_outcome import Outcome
from qpdsl.errors import UsageError, reason
from qpdsl.output import sync_folder

FORMAT = 1


class Journal:
    """An open journal, locked against a second run. `done` maps the number of a row to its outcome."""

    def __init__(self, path: Path, handle: int, done: dict[int, Outcome]) -> None:
        self.path = path
        self.done = done
        self._handle = handle

    @classmethod
    def begin(cls, path: Path, fingerprint: Fingerprint) -> Journal:
        """A new journal in place of any that is there. Raises UsageError."""
        handle = _open_locked(path)
        journal = cls(path, handle, {})
        try:
            os.ftruncate(handle, 0)
            journal._write({"qpdsl_journal": FORMAT, "fingerprint": fingerprint})
        except BaseException:
            journal.close()
            raise
        sync_folder(path.parent)
        return journal

    @classmethod
    def resume(cls, path: Path, fingerprint: Fingerprint) -> Journal:
        """The journal of a run that is resumed. Raises UsageError where it belongs to another run."""
        handle = _open_locked(path)
        try:
            with path.open("rb") as file:
                header, records, whole = parse(file.read())
            if header is not None:
                _check(path, header, fingerprint)
            done = _outcomes(path, records)
            os.ftruncate(handle, whole)
            os.lseek(handle, 0, os.SEEK_END)
            journal = cls(path, handle, done)
            if header is None:
                journal._write({"qpdsl_journal": FORMAT, "fingerprint": fingerprint})
        except BaseException:
            os.close(handle)
            raise
        return journal

    def add(self, number: int, outcome: Outcome) -> None:
        """Records a finished row; when this returns, a power cut does not undo it."""
        self._write({"row": number, "outcome": outcome.to_json()})
        self.done[number] = outcome

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def remove(self) -> None:
        """Deletes the journal: the run is finished."""
        self.path.unlink(missing_ok=True)
        sync_folder(self.path.parent)
        self.close()

    def _write(self, record: Mapping[str, Any]) -> None:
        data = (dumps(record) + "\n").encode()
        try:
            while data:
                data = data[os.write(self._handle, data) :]
            os.fsync(self._handle)
        except OSError as error:
            raise UsageError(f"cannot write `{self.path}`: {reason(error)}") from error


def journal_path(output: Path) -> Path:
    """The path of an output file's journal."""
    return output.with_name(output.name + ".journal")


def fingerprint_in(path: Path) -> Mapping[str, Any]:
    """The fingerprint of the run that a journal belongs to; empty where there is none that can be read."""
    try:
        with path.open("rb") as file:
            header = json.loads(file.readline())
    except (OSError, ValueError, RecursionError):
        return {}
    fingerprint = header.get("fingerprint") if isinstance(header, dict) else None
    return fingerprint if isinstance(fingerprint, dict) else {}


def parse(data: bytes) -> tuple[dict[str, Any] | None, list[dict[str, Any]], int]:
    """The header, the records, and how many bytes are whole lines. The header is None where not even it is whole.

    A last line without its newline is torn, whatever it holds. Raises UsageError where another line is no JSON object.
    """
    *lines, torn = data.split(b"\n")
    records: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            raise UsageError(f"the journal is damaged at line {number}", help="start over with `--overwrite`")
        records.append(record)
    whole = len(data) - len(torn)
    return (records[0], records[1:], whole) if records else (None, [], 0)


def _check(path: Path, header: Mapping[str, Any], fingerprint: Fingerprint) -> None:
    before = header.get("fingerprint")
    if header.get("qpdsl_journal") != FORMAT or not isinstance(before, dict):
        raise UsageError(f"`{path}` is not a journal that this version can read", help="start over with `--overwrite`")
    changed = changes(before, fingerprint)
    if changed:
        raise UsageError(
            f"cannot resume the run in `{path}`; changed since it began: {', '.join(changed)}",
            help="give what it was started with, or start over with `--overwrite`",
        )


def _outcomes(path: Path, records: list[dict[str, Any]]) -> dict[int, Outcome]:
    try:
        return {int(record["row"]): Outcome(**record["outcome"]) for record in records}
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"the journal `{path}` is damaged: {error}", help="start over with `--overwrite`") from error


def _open_locked(path: Path) -> int:
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise UsageError(f"cannot write `{path}`: {reason(error)}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise UsageError(f"another run is writing to `{path}`") from None
    except OSError:
        # A file system without locks; the run goes on without this guard.
        return handle
    return handle
