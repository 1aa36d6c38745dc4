"""The folder of what qpdsl makes once and keeps, in the user's cache folder."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from pathlib import Path


def cache_folder() -> Path | None:
    """`qpdsl` in XDG_CACHE_HOME, by default in `~/.cache`; None where there is no home. It need not exist."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # Its specification has relative paths ignored.
    if os.path.isabs(base):
        return Path(base) / "qpdsl"
    with contextlib.suppress(RuntimeError):
        home = Path.home()
        if home.is_absolute():
            return home / ".cache" / "qpdsl"
    return None


def opened(path: Path, flags: int) -> int:
    """A regular file, opened as it is: never what a link leads to, nor a pipe that would wait. Raises OSError."""
    handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is not a regular file")
    return handle


def keep_file(path: Path, content: bytes) -> None:
    """Writes a file of the cache folder, whole or not at all; where that cannot be, nothing is written."""
    part: str | None = None
    with contextlib.suppress(OSError):
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, part = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.replace(part, path)
            part = None
        finally:
            if part is not None:
                os.unlink(part)
