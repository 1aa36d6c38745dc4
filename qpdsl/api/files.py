"""Files that a Python program brings along: what it says in place of a file on disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from qpdsl.grammar.files import Files


@dataclass(frozen=True)
class PythonFiles(Files):
    """`texts` are files that lie nowhere but in memory. Python code may read any other: it could without our help."""

    texts: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def beside(cls, folder: Path, texts: Mapping[str, str]) -> PythonFiles:
        return cls(folder, (Path(folder.anchor),), texts)

    def read(self, path: str) -> str:
        return self.texts[path] if path in self.texts else super().read(path)
