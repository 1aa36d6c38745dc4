"""The journal of an unfinished run: every finished row, durable from the moment it counts as done.

JSON lines: a header with the fingerprint of the run, then a line for each row, in the order in which they finished. A
run that is killed leaves at most one torn line at the end, which is dropped when the run is resumed. Each line ends in
a digest of itself and of the run's fingerprint, so that a line that was damaged or edited is not believed: its row runs
again. A run keeps its journal locked; the lock ends with the process, however that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import stat
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

from qpdsl.dataset.fingerprint import Fingerprint, changes, digest
from qpdsl.dataset.json_values import dumps
from qpdsl.dataset.row_outcome import Outcome
from qpdsl.errors import UsageError, reason
from qpdsl.output import sync_folder

FORMAT = 2
_START_OVER = "start over with `--overwrite`"
_MARK = '{"qpdsl_journal": '
_SEAL = re.compile(rb', "digest": "([0-9a-f]{32})"\}')
_SEAL_LENGTH = len(', "digest": ""}') + 32


class Journal:
    """A journal that this process has locked; nothing is changed in it before `begin`.

    `done` maps the number of a row to its outcome. `damaged` are the numbers of lines that were not believed.
    `replaces` says that the finished output, if there is one, is to be replaced.
    """

    def __init__(self, path: Path) -> None:
        """Opens and locks the journal at `path`. Raises UsageError."""
        self.path = path
        self.done: dict[int, Outcome] = {}
        self.damaged: list[int] = []
        self.replaces = False
        self._handle = _open_locked(path)
        self._key = b""
        self._end = 0
        self._begun = False

    @property
    def unfinished(self) -> bool:
        """Whether the journal holds a run."""
        return os.fstat(self._handle).st_size > 0

    def read(self, fingerprint: Fingerprint, ids: Sequence[str]) -> None:
        """Takes over the finished rows of the run to resume, whose rows have these ids.

        Raises UsageError where the journal belongs to another run.
        """
        os.lseek(self._handle, 0, os.SEEK_SET)
        with os.fdopen(os.dup(self._handle), "rb") as file:
            lines = file.read().split(b"\n")[:-1]
        self._key = _key(fingerprint)
        header = _header(lines[0]) if lines else None
        if header is not None:
            self._check(header, fingerprint)
            self.replaces = header.get("replaces") is True
        for number, line in enumerate(lines, 1):
            if number == 1 and header is not None:
                continue
            # Where the header is gone, or damaged, a row's line still shows which run it is of.
            row = self._row(line, ids)
            if row is None:
                self.damaged.append(number)
            else:
                self.done[row[0]] = row[1]
        if lines and header is None and not self.done:
            raise UsageError(
                f"the first line of `{self.path}` is damaged, and no other shows that it belongs to this run",
                help=_START_OVER,
            )
        self._end = sum(len(line) + 1 for line in lines)

    def begin(self, fingerprint: Fingerprint, *, replaces: bool = False) -> None:
        """From here on rows are added: after those that were read, or else in place of whatever the journal holds.

        Raises UsageError.
        """
        self._key = _key(fingerprint)
        self._begun = True
        self.replaces = self.replaces or replaces
        try:
            os.ftruncate(self._handle, self._end)
        except OSError as error:
            raise UsageError(f"cannot write `{self.path}`: {reason(error)}") from error
        if not self._end:
            header = {"qpdsl_journal": FORMAT, "replaces": self.replaces, "fingerprint": fingerprint}
            self._write(sealed(dumps(header).encode(), b""))
            sync_folder(self.path.parent)

    def add(self, number: int, outcome: Outcome) -> None:
        """Records a finished row; when this returns, a power cut does not undo it. Raises UsageError."""
        self._write(sealed(dumps({"row": number, "outcome": outcome.to_json()}).encode(), self._key))
        self.done[number] = outcome

    def close(self) -> None:
        """Unlocks the journal, which stays for a run that resumes this one, unless there is nothing to resume."""
        if self._handle >= 0:
            began_in_vain = self._begun and not self.done and not self.damaged
            if began_in_vain or not self.unfinished:
                self.remove()
            else:
                self._unlock()

    def remove(self) -> None:
        """Deletes the journal: the run is finished."""
        if self._handle >= 0:
            self.path.unlink(missing_ok=True)
            sync_folder(self.path.parent)
            self._unlock()

    def _unlock(self) -> None:
        os.close(self._handle)
        self._handle = -1

    def _check(self, header: Mapping[str, Any], fingerprint: Fingerprint) -> None:
        if header["qpdsl_journal"] != FORMAT:
            raise UsageError(
                f"`{self.path}` was written by another version of qpdsl",
                help=f"resume the run with that version, or {_START_OVER}",
            )
        changed = changes(header["fingerprint"], fingerprint)
        if changed:
            raise UsageError(
                f"cannot resume the run in `{self.path}`; changed since it began: {', '.join(changed)}",
                help=f"give what it was started with, or {_START_OVER}",
            )

    def _row(self, line: bytes, ids: Sequence[str]) -> tuple[int, Outcome] | None:
        """The row that a line holds; None where the line is not what this run wrote."""
        content = unsealed(line, self._key)
        if content is None:
            return None
        record = json.loads(content)
        try:
            number, outcome = record["row"], Outcome(**record["outcome"])
        except (KeyError, TypeError):
            return None
        return (number, outcome) if 0 <= number < len(ids) and outcome.id == ids[number] else None

    def _write(self, line: bytes) -> None:
        data, end = line + b"\n", self._end
        try:
            while data:
                count = os.pwrite(self._handle, data, end)
                data, end = data[count:], end + count
            os.fsync(self._handle)
            self._end = end
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._handle, self._end)
            raise UsageError(f"cannot write `{self.path}`: {reason(error)}") from error


def journal_path(output: Path) -> Path:
    """The path of an output file's journal."""
    return output.with_name(output.name + ".journal")


def fingerprint_in(path: Path) -> Mapping[str, Any]:
    """The fingerprint of the run that a journal belongs to; empty where there is none that can be read."""
    try:
        with path.open("rb") as file:
            header = _header(file.readline().removesuffix(b"\n"))
    except OSError:
        return {}
    return header["fingerprint"] if header is not None else {}


def begins_journal(file: BinaryIO) -> bool:
    """Whether a file is a journal of any version, though its first line may be torn or damaged."""
    start = file.read(len(_MARK))
    if start and _MARK.encode().startswith(start):
        return True
    file.seek(0)
    return any(_SEAL.fullmatch(line.rstrip(b"\n")[-_SEAL_LENGTH:]) for line in file)


def sealed(content: bytes, key: bytes) -> bytes:
    """A JSON object with the digest of itself and a key as its last field."""
    return content[:-1] + b', "digest": "' + _digest(content, key) + b'"}'


def unsealed(line: bytes, key: bytes) -> bytes | None:
    """The JSON object in a line; None where the digest is not that of the object and the key."""
    seal = _SEAL.fullmatch(line[-_SEAL_LENGTH:])
    content = line[:-_SEAL_LENGTH] + b"}"
    return content if seal is not None and seal[1] == _digest(content, key) else None


def busy(path: Path) -> UsageError:
    """What a second run is told that would write what another writes."""
    return UsageError(
        f"another run is writing to `{path}` now", "wait for it or stop it, or give `--output` another name"
    )


def check_free(path: Path) -> None:
    """Raises UsageError where a run has the journal locked."""
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise busy(path) from None
        finally:
            os.close(handle)


def _header(line: bytes) -> dict[str, Any] | None:
    """The header in a journal's first line, of this or an earlier format; None where the line is damaged."""
    content = unsealed(line, b"")
    try:
        header = json.loads(line if content is None else content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(header, dict) or not isinstance(header.get("fingerprint"), dict):
        return None
    version = header.get("qpdsl_journal")
    # The first format had no digests.
    was_sealed = version == FORMAT or "digest" in header
    return header if isinstance(version, int) and not (content is None and was_sealed) else None


def _key(fingerprint: Fingerprint) -> bytes:
    return digest(dict(fingerprint)).encode()


def _digest(content: bytes, key: bytes) -> bytes:
    return blake2b(content, digest_size=16, key=key).hexdigest().encode()


def _open_locked(path: Path) -> int:
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise UsageError(f"cannot write `{path}`: {reason(error)}") from error
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise UsageError(f"cannot write `{path}`: it is not a regular file")
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The run that had it locked may have removed it since it was opened.
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                return handle
        except BlockingIOError:
            os.close(handle)
            raise busy(path) from None
        except FileNotFoundError:
            pass
        except OSError as error:
            os.close(handle)
            raise UsageError(
                f"cannot lock `{path}`: {reason(error)}", "write to a file system that has locks, such as a local disk"
            ) from error
        except UsageError:
            os.close(handle)
            raise
        os.close(handle)
