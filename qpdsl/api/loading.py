"""Programs from `.qp` text."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from qpdsl.api.functions import Registered, by_name, environment
from qpdsl.api.program import Program
from qpdsl.executor.runtime.functions import PythonFunction
from qpdsl.grammar.files import Files
from qpdsl.grammar.parse import parse_file
from qpdsl.grammar.source import Source

Functions = Iterable[Registered[..., Any] | PythonFunction]


def load(
    file: str | Path, program: str | None = None, *, functions: Functions = (), allow: Iterable[str | Path] = ()
) -> Program[..., Any]:
    """The program in a `.qp` file, or a shipped one by its name; `program` says which of several.

    The program may name the `functions`, and read files in its own folder and in those of `allow`. Raises UsageError
    and QpError.
    """
    from qpdsl.cli.sources import find_source, shipped_programs

    source = find_source(str(file))
    shipped = shipped_programs().get(str(file))
    path = Path(file) if Path(file).is_file() or shipped is None else Path(str(shipped))
    return _loaded(source, program, Files(path.parent, tuple(map(Path, allow))), functions)


def parse(
    text: str, program: str | None = None, *, functions: Functions = (), folder: str | Path | None = None
) -> Program[..., Any]:
    """The program in a text; `program` says which of several. It reads files only in `folder`. Raises QpError."""
    return _loaded(Source("text.qp", text), program, Files(None if folder is None else Path(folder)), functions)


def _loaded(source: Source, program: str | None, files: Files, functions: Functions) -> Program[..., Any]:
    known = by_name(functions)
    return Program(parse_file(source), program, environment(files, known), known)
