"""What qpdsl remembers between runs, in the user's cache folder: statistics, devices that were measured, routers.

Nothing here is ever required: a file that cannot be read, or that holds what was not written here, counts as absent,
and `damaged_files` says so. Only regular files are read and written, never what a link leads to. A file that cannot be
written raises UsageError, which a command reports if its user asked for the file.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from qpdsl.errors import UsageError, UserError, reason
from qpdsl.executor.checkpoint.cache_folder import cache_folder, opened
from qpdsl.output import check_writable, write_whole
from qpdsl.planner.cost.device import Device, device_from_json, device_json, nominal
from qpdsl.planner.cost.statistics import ROUTERS_FILE, STATISTICS_FILE, RouterStates, Statistics

T = TypeVar("T")
_LOCK_SECONDS, _LOCK_TRIES = 1.0, 50
# Some hundred times what is written here.
_LARGEST_FILE = 64 << 20
# What runs write, and what reads it.
_OF_RUNS: Mapping[str, Callable[[str], object]] = {
    STATISTICS_FILE: Statistics.from_text,
    ROUTERS_FILE: RouterStates.from_text,
}


class _Unusable(Exception):
    """A file that is there and cannot be used; the message says why."""


def folder() -> Path:
    """`qpdsl` in the user's cache folder. Raises UsageError where there is no home."""
    if (kept := cache_folder()) is not None:
        return kept
    raise UsageError("there is no home folder to keep anything in", "XDG_CACHE_HOME may name a folder")


def damaged_files() -> list[str]:
    """A line for each file that is there and cannot be used."""
    notes: list[str] = []
    try:
        own = [folder() / name for name in _OF_RUNS]
        files = [*own, *sorted(folder().glob(_device_file("*", "*", "*")))]
    except (OSError, UserError):
        return notes
    for file in files:
        try:
            _read(file, _OF_RUNS.get(file.name, _device))
        except _Unusable as why:
            again = "runs" if file.name in _OF_RUNS else "`qpdsl profile`"
            notes.append(f"`{file}` is not used ({why}); {again} will write it anew")
    return notes


def read_statistics() -> Statistics:
    try:
        return _read(folder() / STATISTICS_FILE, Statistics.from_text) or Statistics()
    except (_Unusable, UserError):
        return Statistics()


def write_statistics(statistics: Statistics) -> None:
    _write(STATISTICS_FILE, statistics.to_text())


@contextlib.contextmanager
def changing_statistics() -> Iterator[Statistics]:
    """The statistics, written when the block ends. Runs that end at the same time wait for one another.

    Raises UsageError where they cannot be written.
    """
    with _locked():
        statistics = read_statistics()
        yield statistics
        write_statistics(statistics)


def read_routers() -> RouterStates:
    """What routers learned, empty where there is nothing."""
    try:
        return _read(folder() / ROUTERS_FILE, RouterStates.from_text) or RouterStates()
    except (_Unusable, UserError):
        return RouterStates()


@contextlib.contextmanager
def changing_routers() -> Iterator[RouterStates]:
    """What routers learned, written when the block ends. Raises UsageError where it cannot be written."""
    with _locked():
        states = read_routers()
        yield states
        _write(ROUTERS_FILE, states.to_text())


def read_device(kind: str, dtype: str, threads: int) -> Device:
    """The device as it was measured; a nominal one where it never was."""
    return measured_device(kind, dtype, threads) or nominal(kind)


def measured_device(kind: str, dtype: str, threads: int | None = None) -> Device | None:
    """The device as it was measured last, with any number of threads where none is given; None where it never was."""
    try:
        files = [(file.lstat().st_mtime, file) for file in folder().glob(_device_file(kind, dtype, threads or "*"))]
    except (OSError, UserError):
        return None
    for _, file in sorted(files, reverse=True):
        with contextlib.suppress(_Unusable):
            device = _read(file, _device)
            # Several kinds of device may share the name of a file.
            if device is not None and device.measured and (device.kind, device.dtype) == (kind, dtype):
                return device
    return None


def check_devices_kept() -> None:
    """Raises UsageError where a device could not be written, before it is measured."""
    _make_folder()
    check_writable(folder() / "device.json")


def write_device(device: Device) -> None:
    """Raises UsageError where it cannot be written."""
    text = json.dumps(device_json(device), indent=1) + "\n"
    _write(_device_file(device.kind, device.dtype, device.threads), text)


def _device(text: str) -> Device:
    """Raises ValueError."""
    return device_from_json(json.loads(text))


def _device_file(kind: str, dtype: str, threads: int | str) -> str:
    return f"device-{re.sub(r'[^a-z0-9*]', '-', kind)}-{dtype}-{threads}.json"


def _read(path: Path, parse: Callable[[str], T]) -> T | None:
    """What a file holds; None where there is none. Raises _Unusable."""
    try:
        with open(opened(path, os.O_RDONLY), "rb") as file:
            data = file.read(_LARGEST_FILE + 1)
        if len(data) > _LARGEST_FILE:
            raise _Unusable("it is too large")
        return parse(data.decode("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _Unusable("it is a link" if error.errno == errno.ELOOP else reason(error)) from error
    except (ValueError, RecursionError) as error:
        raise _Unusable("it is damaged, or of another version of qpdsl") from error


def _write(name: str, text: str) -> None:
    """Raises UsageError."""
    _make_folder()
    write_whole(folder() / name, text.splitlines())


def _make_folder() -> None:
    try:
        folder().mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the folder `{folder()}`: {reason(error)}") from error


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    """Keeps other processes from changing the statistics, where the system has locks. Waits a second at the most."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, ImportError, UserError):
            import fcntl

            folder().mkdir(parents=True, exist_ok=True)
            lock = opened(folder() / f"{STATISTICS_FILE}.lock", os.O_RDWR | os.O_CREAT)
            stack.callback(os.close, lock)
            for _ in range(_LOCK_TRIES):
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(_LOCK_SECONDS / _LOCK_TRIES)
        # Without the lock, what another run adds meanwhile may be lost, and nothing else.
        yield
