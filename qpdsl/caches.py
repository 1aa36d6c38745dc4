"""What qpdsl remembers between runs, in the user's cache folder: statistics, and devices that were measured.

Nothing here is ever required: what cannot be read is as good as absent, and what cannot be written is left.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from qpdsl.errors import UserError
from qpdsl.output import write_whole
from qpdsl.planner.device import Device, device_from_json, device_json, nominal
from qpdsl.planner.stats import STATISTICS_FILE, Statistics

_LOCK_SECONDS, _LOCK_TRIES = 1.0, 50


def folder() -> Path:
    """`qpdsl` in XDG_CACHE_HOME, by default in `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "qpdsl"


def read_statistics() -> Statistics:
    try:
        return Statistics.from_text((folder() / STATISTICS_FILE).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return Statistics()


def write_statistics(statistics: Statistics) -> None:
    _write(STATISTICS_FILE, statistics.to_text())


@contextlib.contextmanager
def changing_statistics() -> Iterator[Statistics]:
    """The statistics, to be written when the block ends. Runs that end at the same time wait for one another."""
    with _alone():
        statistics = read_statistics()
        yield statistics
        write_statistics(statistics)


def read_device(kind: str, dtype: str, threads: int) -> Device:
    """The device as it was measured; a nominal one where it never was."""
    try:
        return device_from_json(json.loads((folder() / _device_file(kind, dtype, threads)).read_text("utf-8")))
    except (OSError, ValueError):
        return nominal(kind)


def measured_device() -> Device | None:
    """The device that was measured last, whatever it computed in; None where none was."""
    try:
        files = sorted(folder().glob("device-*.json"), key=lambda file: file.stat().st_mtime)
        return device_from_json(json.loads(files[-1].read_text("utf-8"))) if files else None
    except (OSError, ValueError):
        return None


def write_device(device: Device) -> None:
    text = json.dumps(device_json(device), indent=1) + "\n"
    _write(_device_file(device.kind, device.dtype, device.threads), text)


def _device_file(kind: str, dtype: str, threads: int) -> str:
    return f"device-{re.sub(r'[^a-z0-9]', '-', kind)}-{dtype}-{threads}.json"


def _write(name: str, text: str) -> None:
    path = folder() / name
    with contextlib.suppress(OSError, UserError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text.splitlines())


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Keeps other processes from changing the statistics, where the system has locks; for a second at the most."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, ImportError):
            import fcntl

            folder().mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context((folder() / f"{STATISTICS_FILE}.lock").open("w"))
            for _ in range(_LOCK_TRIES):
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(_LOCK_SECONDS / _LOCK_TRIES)
        # Without the lock what another run adds meanwhile may be lost, and nothing else.
        yield
