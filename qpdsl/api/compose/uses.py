"""A program that another one calls: its declarations join those of the caller's file.

MERGED: Files that a Python program brings along: what it says in place of a file on disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from qpdsl.api.call_sites import rewritten, spanned
from qpdsl.api.composition import Composition
from qpdsl.api.program import Program
from qpdsl.grammar import ast
from qpdsl.grammar.files import Files
from qpdsl.grammar.source import Span


@dataclass(frozen=True)
class PythonFiles(Files):
    """`texts` are files that lie nowhere but in memory. Python code may read any other: it could without our help."""

    texts: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def beside(cls, folder: Path, texts: Mapping[str, str]) -> PythonFiles:
        return cls(folder, (Path(folder.anchor),), texts)

    def read(self, path: str) -> str:
        return self.texts[path] if path in self.texts else super().read(path)


D = TypeVar("D", ast.Model, ast.Schema, ast.Program)


def used(composition: Composition, program: Program[..., Any], span: Span) -> str:
    """Brings a program and what it is declared with into the composition; gives its name.

    All of it is placed at `span`, where it is called: its own text is another.
    """
    files = program.environment.files
    brought = rewritten(spanned(program.file, lambda _: span), lambda node: _anywhere(node, files))
    _join(composition, composition.models, brought.models, "models", span)
    _join(composition, composition.schemas, brought.schemas, "schemas", span)
    _join(composition, composition.programs, brought.programs, "programs", span)
    composition.uses += [use for use in brought.uses if use not in composition.uses]
    if isinstance(files, PythonFiles):
        composition.texts.update(files.texts)
    for name, function in program.functions.items():
        if composition.functions.setdefault(name, function) is not function:
            raise composition.refuse("QP208", f"two functions are called `{name}`", span)
    return program.name


def _join(composition: Composition, known: dict[str, D], more: Iterable[D], what: str, span: Span) -> None:
    for item in more:
        if known.setdefault(item.name, item) != item:
            raise composition.refuse("QP208", f"two {what} are called `{item.name}`", span)


def _anywhere(node: Any, files: Files) -> Any:
    """The node with a path that means the same file from everywhere."""
    path = getattr(node, "path", None)
    if not isinstance(path, str) or files.folder is None or path in getattr(files, "texts", ()):
        return node
    return replace(node, path=str(Path(files.folder).resolve() / path))
