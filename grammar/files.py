"""Reading the files that a program names: schemas, grammars, other programs.

A path in a program is relative to the program's own folder and must stay under it, symbolic links resolved, unless the
caller allows more folders. A program without a folder (`-e`, text given to `parse`) reads nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from qpdsl.grammar.source import MAX_SOURCE_BYTES


class FileRefused(Exception):
    """A file that a program may not read, or that cannot be read; the message says why, for a diagnostic."""


@dataclass(frozen=True)
class Files:
    """What one program may read: its own `folder` (None for a program without one), and the folders in `allowed`.

    `opened` collects the files that were read.
    """

    folder: Path | None = None
    allowed: tuple[Path, ...] = ()
    opened: set[Path] = field(default_factory=set, compare=False, repr=False)

    def resolve(self, path: str) -> Path:
        """Where a path in the program points. Raises FileRefused where the program may not read there."""
        if self.folder is None:
            raise FileRefused("this program is not a file, so it has no folder to read from")
        try:
            target = (self.folder / path).resolve()
        except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a name that no file can have
            raise FileRefused(f"`{path}` leads nowhere") from error
        if not any(target.is_relative_to(folder.resolve()) for folder in (self.folder, *self.allowed)):
            raise FileRefused(f"`{path}` lies outside the program's folder")
        return target

    def read(self, path: str, most: int = MAX_SOURCE_BYTES) -> str:
        """The text of a file of at most so many bytes. Raises FileRefused."""
        target = self.resolve(path)
        try:
            if target.exists() and not target.is_file():
                raise FileRefused(f"`{path}` is no file")
            with target.open("rb") as file:
                data = file.read(most + 1)
            self.opened.add(target)
        except OSError as error:
            raise FileRefused(f"`{path}` cannot be read: {(error.strerror or 'no such file').lower()}") from error
        if len(data) > most:
            raise FileRefused(f"`{path}` is larger than {most >> 20} MiB")
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise FileRefused(f"`{path}` is not UTF-8 text") from error
