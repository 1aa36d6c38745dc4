"""A program that another program calls: its declarations join those of the caller's file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from qpdsl.api.composition import Composition, PythonFiles
from qpdsl.api.program import Program
from qpdsl.api.syntax_trees import rewritten, spanned
from qpdsl.grammar import ast
from qpdsl.grammar.files import Files
from qpdsl.grammar.source import Span

D = TypeVar("D", ast.Model, ast.Schema, ast.Program)


def use(composition: Composition, program: Program[..., Any], span: Span) -> str:
    """Adds a program, with all that it is declared with, to the composition. Returns its name. Raises QpError.

    All of it is placed at `span`, the place of the call, since its own places are in another text.
    """
    files = program.environment.files
    file = rewritten(spanned(program.file, lambda _: span), lambda node: _absolute(node, files))
    _join(composition, composition.models, file.models, "models", span)
    _join(composition, composition.schemas, file.schemas, "schemas", span)
    _join(composition, composition.programs, file.programs, "programs", span)
    composition.uses += [imported for imported in file.uses if imported not in composition.uses]
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


def _absolute(node: Any, files: Files) -> Any:
    """The node with an absolute path, which names the same file from every folder."""
    path = getattr(node, "path", None)
    if not isinstance(path, str) or files.folder is None or path in getattr(files, "texts", ()):
        return node
    return replace(node, path=str(Path(files.folder).resolve() / path))
