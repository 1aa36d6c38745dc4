"""Writing results: to a file that is either whole or absent, or as lines on a stream in the order of the input."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from qpdsl.errors import UsageError, reason


def check_writable(path: Path, input_path: Path | None = None) -> Path:
    """The file to write, with links followed. Raises UsageError, before any work, where it cannot be written."""
    target = Path(os.path.realpath(path)) if path.is_symlink() else path
    folder = target.parent
    if target.is_dir():
        raise UsageError(f"cannot write `{path}`: it is a folder")
    if not folder.is_dir():
        there = "is not a folder" if folder.exists() else "does not exist"
        raise UsageError(f"cannot write `{path}`: the folder `{folder}` {there}")
    if target.exists() and not stat.S_ISREG(target.stat().st_mode):
        raise UsageError(f"cannot write `{path}`: it is not a regular file", help="leave out `--output` to use stdout")
    if input_path is not None and target.exists() and input_path.exists() and target.samefile(input_path):
        raise UsageError(f"`{path}` is the input data; `--output` must be another file")
    try:
        # Only a real file shows a read-only file system, and what root may write.
        probe = _beside(target)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UsageError(f"cannot write in `{folder}`: {reason(error)}") from error
    return target


def write_whole(path: Path, lines: Iterable[str]) -> None:
    """Writes a file so that at any moment, even after a power cut, it holds all lines or what it held before."""
    part = _beside(path)
    try:
        with part.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{line}\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise UsageError(f"cannot write `{path}`: {reason(error)}") from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def replace_text(path: Path, text: str) -> None:
    """Replaces the text of a file, whole or not at all. The file keeps its mode, and a link keeps its target."""
    target = Path(os.path.realpath(path))
    if not os.access(target, os.W_OK):
        raise UsageError(f"cannot write `{path}`: it is read-only")
    part = _beside(target)
    try:
        with part.open("w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.chmod(stat.S_IMODE(target.stat().st_mode))
        part.replace(target)
        sync_folder(target.parent)
    except OSError as error:
        raise UsageError(f"cannot write `{path}`: {reason(error)}") from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Makes changes of the names in a folder durable, where the file system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class OrderedLines:
    """Passes lines on to a stream in the order of their numbers, each as soon as those before it are there."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._waiting: dict[int, str] = {}
        self._next = 0

    def put(self, number: int, line: str) -> None:
        self._waiting[number] = line
        while self._next in self._waiting:
            self._stream.write(self._waiting.pop(self._next) + "\n")
            self._next += 1
        self._stream.flush()

    def rest(self) -> None:
        """Passes on the lines that wait for one that will not come."""
        self._stream.writelines(f"{self._waiting[number]}\n" for number in sorted(self._waiting))
        self._waiting.clear()
        self._stream.flush()


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.part")
