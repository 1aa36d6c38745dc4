"""Texts that parse, as trees."""

from __future__ import annotations

from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import QpError
from qpdsl.grammar.parse.parser import parse_file
from qpdsl.grammar.source import Source


def parsed(text: str) -> ast.File:
    """The tree of a file, which must have no errors."""
    file = parse_file(Source("p.qp", text))
    assert not file.errors, str(QpError(file.errors, file.source))
    return file
