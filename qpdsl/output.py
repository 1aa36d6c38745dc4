"""Writing results: to a file that is either whole or absent, or as lines in the order of the input."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from qpdsl.errors import UsageError, reason


def check_writable(path: Path) -> Path:
    """The file to write, with links followed. Raises UsageError, before any work, where it cannot be written."""
    try:
        target = Path(os.path.realpath(path)) if path.is_symlink() else path
        folder = target.parent
        status = target.stat() if target.exists() else None
        if status is not None and stat.S_ISDIR(status.st_mode):
            raise UsageError(f"cannot write `{path}`: it is a folder")
        if not folder.is_dir():
            there = "is not a folder" if folder.exists() else "does not exist"
            raise UsageError(f"cannot write `{path}`: the folder `{folder}` {there}")
        if status is not None and not stat.S_ISREG(status.st_mode):
            raise UsageError(f"cannot write `{path}`: it is not a regular file")
        if status is not None and not os.access(target, os.W_OK):
            raise UsageError(f"cannot write `{path}`: it is read-only")
    except OSError as error:
        raise UsageError(f"cannot write `{path}`: {reason(error)}") from error
    try:
        # Only a real file shows a read-only file system, and what root may write.
        part = _new_part(folder)
        part.unlink()
    except OSError as error:
        raise UsageError(f"cannot write in `{folder}`: {reason(error)}") from error
    return target


def holds_something(path: Path) -> bool:
    """Whether there is something at a path that can be lost: not where there is nothing, or an empty file."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return not stat.S_ISREG(status.st_mode) or status.st_size > 0


def write_whole(path: Path, lines: Iterable[str], *, replace: bool = True) -> None:
    """Writes a file so that at any moment, even after a power cut, it holds all lines or what it held before.

    The file keeps its mode. Raises UsageError, without `replace` also where the path holds something.
    """
    _write(path, path, (f"{line}\n".encode() for line in lines), replace=replace)


def write_whole_bytes(path: Path, data: bytes, *, replace: bool = True) -> None:
    """`write_whole` for a file that is no text."""
    _write(path, path, [data], replace=replace)


@contextlib.contextmanager
def folder_written(path: Path) -> Iterator[Path]:
    """A new folder to write files into; after the block it takes the place of `path`, with what was there before.

    Nothing stays of it where the block fails or is interrupted. Raises UsageError where it cannot be written.
    """
    part: Path | None = None
    retired: Path | None = None
    try:
        part = Path(tempfile.mkdtemp(prefix=".qpdsl-", suffix=".part", dir=path.parent))
        yield part
        for file in part.iterdir():
            file.chmod(0o644)
        part.chmod(0o755)
        if path.exists():
            retired = part.with_suffix(".old")
            path.rename(retired)
        part.rename(path)
        sync_folder(path.parent)
    except OSError as error:
        raise UsageError(f"cannot write `{path}`: {reason(error)}") from error
    finally:
        if retired is not None and not path.exists():
            retired.rename(path)
        for left in (part, retired):
            if left is not None:
                shutil.rmtree(left, ignore_errors=True)


def replace_text(path: Path, text: str) -> None:
    """Replaces the text of a file, whole or not at all. The file keeps its mode, and a link keeps its target."""
    target = Path(os.path.realpath(path))
    if not target.is_file():
        raise UsageError(f"cannot write `{path}`: it is not a regular file")
    if not os.access(target, os.W_OK):
        raise UsageError(f"cannot write `{path}`: it is read-only")
    _write(path, target, [text.encode()], replace=True)


def _write(path: Path, target: Path, parts: Iterable[bytes], *, replace: bool) -> None:
    part: Path | None = None
    try:
        part = _new_part(target.parent)
        with part.open("wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        if target.is_file():
            part.chmod(stat.S_IMODE(target.stat().st_mode))
        if replace or not _linked(part, target):
            part.replace(target)
        sync_folder(target.parent)
    except OSError as error:
        raise UsageError(f"cannot write `{path}`: {reason(error)}") from error
    finally:
        if part is not None:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)


def _linked(part: Path, target: Path) -> bool:
    """Gives a file its name if that is free. False where nothing speaks against replacing what has that name."""
    try:
        os.link(part, target)
        return True
    except OSError:
        # The name is taken, or the file system has no links.
        if holds_something(target):
            raise UsageError(f"cannot write `{target}`: another file has come there in the meantime") from None
        return False


def _new_part(folder: Path) -> Path:
    """A new, empty file for what is written. Raises OSError."""
    part = folder / f".qpdsl-{secrets.token_hex(6)}.part"
    os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
    return part


def sync_folder(folder: Path) -> None:
    """Makes changes of the names in a folder durable, where the file system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class OrderedLines:
    """Passes lines on in the order of their numbers, each as soon as those before it are there."""

    def __init__(self, pass_on: Callable[[str], None]) -> None:
        self._pass_on = pass_on
        self._waiting: dict[int, str] = {}
        self._next = 0

    def put(self, number: int, line: str) -> None:
        self._waiting[number] = line
        while self._next in self._waiting:
            self._pass_on(self._waiting.pop(self._next))
            self._next += 1

    def rest(self) -> None:
        """Passes on the lines that wait for one that will not come."""
        for number in sorted(self._waiting):
            self._pass_on(self._waiting.pop(number))
