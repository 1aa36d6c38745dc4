"""Reading a file that a stranger wrote: up to a bound, and not what has no end."""

from __future__ import annotations

import errno
from pathlib import Path

# Bytes of a configuration, and of a vocabulary. Of published models the largest take a tenth of it.
MAX_CONFIGURATION, MAX_VOCABULARY = 64 << 20, 512 << 20


class FileTooLarge(OSError):
    """A file that is larger than any of its kind."""

    def __init__(self, path: Path, most: int) -> None:
        super().__init__(errno.EFBIG, f"it is larger than {most >> 20} MiB", str(path))


def read_bounded(path: Path, most: int = MAX_CONFIGURATION) -> bytes:
    """What a file holds, of at most so many bytes. Raises FileTooLarge, and OSError where it cannot be read."""
    with path.open("rb") as file:
        check_size(path, most)
        data = file.read(most + 1)
    if len(data) > most:
        raise FileTooLarge(path, most)
    return data


def check_size(path: Path, most: int) -> None:
    """Raises FileTooLarge, also of a file that takes little space and says that it is long, and OSError."""
    if path.stat().st_size > most:
        raise FileTooLarge(path, most)
