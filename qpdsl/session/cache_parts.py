"""What lies in the user's cache folder, by what it is for. All of it is made again where it is needed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from qpdsl.errors import UsageError, reason


@dataclass(frozen=True, slots=True)
class CachePart:
    """Files whose names in the folder match one of `patterns`, and what it takes to make them again."""

    name: str
    patterns: tuple[str, ...]
    about: str

    def places(self, folder: Path) -> list[Path]:
        """The files and folders of this part that are there. Raises UsageError."""
        try:
            names = sorted(os.listdir(folder))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UsageError(f"cannot read the folder `{folder}`: {reason(error)}") from error
        return [folder / name for name in names if any(fnmatchcase(name, pattern) for pattern in self.patterns)]

    def measured(self, folder: Path) -> tuple[int, int]:
        """The number of its files, and their bytes. Raises UsageError."""
        sizes = [size for place in self.places(folder) for size in _sizes(place)]
        return len(sizes), sum(sizes)

    def empty(self, folder: Path) -> None:
        """Removes its files; of a link the link alone. Raises UsageError."""
        for place in self.places(folder):
            try:
                if place.is_dir() and not place.is_symlink():
                    shutil.rmtree(place)
                else:
                    place.unlink(missing_ok=True)
            except OSError as error:
                raise UsageError(f"cannot remove `{place}`: {reason(error)}") from error


PARTS = (
    CachePart("kernels", ("kernels",), "compiled for this processor; the next start compiles them again"),
    CachePart("models", ("models",), "what loads came to; the next start checks each model again"),
    CachePart("panels", ("panels",), "weights laid out for this processor; the next start lays them out again"),
    CachePart("gguf", ("gguf",), "tokenizers of GGUF files; the next start reads them again"),
    CachePart("completions", ("completions.sqlite*",), "answers of servers; asked again, they cost again"),
    CachePart("servers", ("servers.json*",), "what servers can do; they are probed again"),
    CachePart("devices", ("device-*.json",), "measured by `qpdsl profile`"),
    CachePart("statistics", ("statistics.json*", "routers.json*"), "of earlier runs, which plans go by"),
    CachePart("optimize", ("optimize",), "states of `qpdsl optimize`, which go on from there"),
)


def _sizes(place: Path) -> Iterator[int]:
    """The bytes of the files in a place, not behind links."""
    try:
        if place.is_dir() and not place.is_symlink():
            with os.scandir(place) as entries:
                for entry in entries:
                    yield from _sizes(Path(entry.path))
        else:
            yield place.lstat().st_size
    except FileNotFoundError:
        return
