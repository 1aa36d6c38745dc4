"""What qpdsl remembers between runs, in the user's cache folder: statistics, and devices that were measured.

Nothing here is ever required: a file that cannot be read counts as absent. One that cannot be written raises
UsageError, which a command reports if its user asked for the file.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from qpdsl.errors import UsageError, UserError, reason
from qpdsl.output import check_writable, write_whole
from qpdsl.planner.cost.device import Device, device_from_json, device_json, nominal
from qpdsl.planner.cost.statistics import STATISTICS_FILE, Statistics

_LOCK_SECONDS, _LOCK_TRIES = 1.0, 50


def folder() -> Path:
    """`qpdsl` in XDG_CACHE_HOME, by default in `~/.cache`. Raises UsageError where there is no home."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "qpdsl"
    except RuntimeError as error:
        raise UsageError("there is no home folder to keep anything in", "XDG_CACHE_HOME may name a folder") from error


def read_statistics() -> Statistics:
    try:
        return Statistics.from_text((folder() / STATISTICS_FILE).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, UserError):
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


def read_device(kind: str, dtype: str, threads: int) -> Device:
    """The device as it was measured; a nominal one where it never was."""
    return measured_device(kind, dtype, threads) or nominal(kind)


def measured_device(kind: str, dtype: str, threads: int | None = None) -> Device | None:
    """The device as it was measured last, with any number of threads where none is given; None where it never was."""
    try:
        files = [(file.stat().st_mtime, file) for file in folder().glob(_device_file(kind, dtype, threads or "*"))]
    except (OSError, UserError):
        return None
    for _, file in sorted(files, reverse=True):
        device = _device(file)
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


def _device(file: Path) -> Device | None:
    """The device that a file describes; None where it cannot be read."""
    try:
        return device_from_json(json.loads(file.read_text("utf-8")))
    except (OSError, ValueError, RecursionError):
        return None


def _device_file(kind: str, dtype: str, threads: int | str) -> str:
    return f"device-{re.sub(r'[^a-z0-9]', '-', kind)}-{dtype}-{threads}.json"


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
            lock = stack.enter_context((folder() / f"{STATISTICS_FILE}.lock").open("w"))
            for _ in range(_LOCK_TRIES):
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(_LOCK_SECONDS / _LOCK_TRIES)
        # Without the lock, what another run adds meanwhile may be lost, and nothing else.
        yield
