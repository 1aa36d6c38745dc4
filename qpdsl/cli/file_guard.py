"""One guard over the files of a command: what it reads and what it writes are different files, and nothing is lost."""

from __future__ import annotations

import fcntl
import os
import stat
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from qpdsl.errors import UsageError, reason
from qpdsl.output import check_writable, holds_something, write_whole, write_whole_bytes
from qpdsl.runs.record_file import PARQUET, nested_parquet_bytes, parquet_bytes, text_lines


@dataclass(frozen=True, slots=True)
class Contents:
    """A kind of file that qpdsl writes: what it holds, in words, and a test of the beginning of an open file."""

    words: str
    begins: Callable[[BinaryIO], bool]


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A file that a command is going to write. Nothing was written to it yet; links in `path` are followed.

    `overwrite` says that a file with the same kind of contents is replaced.
    """

    path: Path
    option: str
    contents: Contents
    overwrite: bool

    def check(self) -> None:
        """Raises UsageError where writing the file would lose what it holds."""
        if holds_something(self.path):
            try:
                with self.path.open("rb") as file:
                    self._check(file)
            except OSError as error:
                raise UsageError(f"cannot write `{self.path}`: {reason(error)}") from error

    def open(self) -> BinaryIO:
        """The file, emptied and open for unbuffered writing by this process alone.

        Raises UsageError, also where that would lose what it holds.
        """
        try:
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
            file = os.fdopen(handle, "r+b", buffering=0)
            try:
                self._lock(handle)
                self._check(file)
                file.seek(0)
                file.truncate()
            except BaseException:
                file.close()
                raise
        except OSError as error:
            raise UsageError(f"cannot write `{self.path}`: {reason(error)}") from error
        return file

    def write(self, lines: Iterable[str]) -> None:
        """Writes the file, whole or not at all. Raises UsageError, also where that would lose what it holds."""
        self.check()
        write_whole(self.path, lines, replace=self.overwrite)

    def write_records(self, records: Sequence[Mapping[str, Any]], form: str, *, nested: bool = False) -> None:
        """`write` for records in one of the formats of `record_file.py`, in Parquet `nested` or flat."""
        if form != PARQUET:
            self.write(text_lines(records, form))
            return
        data = nested_parquet_bytes(records) if nested else parquet_bytes(records)
        self.check()
        write_whole_bytes(self.path, data, replace=self.overwrite)

    def _lock(self, handle: int) -> None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"another run is writing `{self.path}` now", "give another name") from None

    def _check(self, file: BinaryIO) -> None:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"cannot write `{self.path}`: it is not a regular file")
        if not status.st_size:
            return
        if not self.contents.begins(file):
            raise UsageError(
                f"`{self.path}` does not hold {self.contents.words}, so {self.option} does not replace it",
                "give another name, or move that file away",
            )
        if not self.overwrite:
            raise UsageError(
                f"`{self.path}` holds {self.contents.words} already", "`--overwrite` replaces it; or give another name"
            )


class FileGuard:
    """Knows every file that a command reads and writes, in the order in which they are named to it.

    Two names mean the same file where they have the same device and inode, whatever links lead there; a file that does
    not exist yet is known by its folder and its name. Raises UsageError where a file that is written is also read, or
    written twice, or lies in a folder that is kept as it is. What the messages call a file is up to the caller: "the
    program", "the trace".
    """

    def __init__(self) -> None:
        self._read: dict[Hashable, str] = {}
        self._written: dict[Hashable, str] = {}
        self._kept: list[tuple[Hashable, str]] = []
        self._streams()

    def reads(self, path: Path, what: str) -> None:
        """Names a file that is read; one that does not exist is not the guard's matter."""
        identity = _identity(path)
        if identity in self._written:
            raise UsageError(f"`{path}` is {what}, but also {self._written[identity]}")
        self._read.setdefault(identity, what)

    def keeps(self, folder: Path, what: str) -> None:
        """Names a folder that nothing is written in."""
        self._kept.append((_identity(folder), what))

    def writes(self, path: Path, option: str, contents: Contents, *, overwrite: bool) -> OutputFile:
        """Names a file to write, and checks that it can be. `option` is what asks for it."""
        target = check_writable(path)
        identity = _identity(target)
        for others in (self._read, self._written):
            if identity in others:
                raise UsageError(f"`{path}` is {others[identity]}; {option} must be another file")
        above = {_identity(folder) for folder in target.absolute().parents}
        for folder, what in self._kept:
            if folder in above:
                raise UsageError(f"`{path}` lies in {what}; {option} must be elsewhere")
        self._written[identity] = f"the file that {option} writes"
        made = OutputFile(target, option, contents, overwrite)
        made.check()
        return made

    def writes_folder(
        self, path: Path, option: str, files: Sequence[str], contents: Contents, *, overwrite: bool
    ) -> Path:
        """Names a folder to write, and checks that it can be; it is written as a whole, by `output.folder_written`.

        `files` are all that it will hold. A folder that holds other files is not replaced, and one of the same kind,
        whose first file begins as `contents` says, only with `overwrite`.
        """
        target = Path(os.path.realpath(path))
        if target.exists() and not target.is_dir():
            raise UsageError(f"cannot write `{path}`: it is a file, and {option} names a folder")
        # Only where there is a folder around it can one come there.
        check_writable(target.parent / f"{target.name}.part")
        above = {_identity(folder) for folder in (target, *target.absolute().parents)}
        for folder, what in self._kept:
            if folder in above:
                raise UsageError(f"`{path}` lies in {what}; {option} must be elsewhere")
        for name in files:
            if (identity := _identity(target / name)) in self._read:
                raise UsageError(f"`{target / name}` is {self._read[identity]}; {option} must be another folder")
        there = sorted(entry.name for entry in target.iterdir()) if target.exists() else []
        if other := [name for name in there if name not in files]:
            raise UsageError(
                f"`{path}` holds other files, such as `{other[0]}`, so {option} does not replace it",
                "give another name",
            )
        if there:
            OutputFile(target / files[0], option, contents, overwrite).check()
        return target

    def _streams(self) -> None:
        for stream, name in ((sys.stdout, "stdout"), (sys.stderr, "stderr")):
            number = _number(stream)
            if number is not None and stat.S_ISREG(os.fstat(number).st_mode):
                self._written[_identity(number)] = f"the file that {name} goes to"


def _identity(file: Path | int) -> Hashable:
    try:
        status = os.stat(file)
    except OSError:
        return file if isinstance(file, int) else _place(Path(os.path.realpath(file)))
    return status.st_dev, status.st_ino


def _place(path: Path) -> Hashable:
    """What tells apart files that do not exist: the folder, if there is one, and the name."""
    try:
        folder = path.parent.stat()
    except OSError:
        return str(path)
    return folder.st_dev, folder.st_ino, path.name


def _number(stream: TextIO | None) -> int | None:
    try:
        return None if stream is None else stream.fileno()
    except (OSError, ValueError):
        return None
