"""The lock on a run: one process writes it. It ends with the process, however that ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from pathlib import Path

from qpdsl.errors import UsageError, reason

SUFFIX = ".lock"
# Whoever looks whether a run is locked has its lock for a moment.
_TRIES, _WAIT = 10, 0.02


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
    return path.with_name(path.name + SUFFIX)
