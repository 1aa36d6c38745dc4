"""What holds for any text: it is a program, or the diagnostics about it point into it; formatting keeps its tree."""

from __future__ import annotations

from dataclasses import dataclass

from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import Diagnostic, QpError, render, to_json
from qpdsl.grammar.format.formatter import format_source, print_file
from qpdsl.grammar.parse.parser import parse_file, parse_pipeline
from qpdsl.grammar.parse.tokens import scan
from qpdsl.grammar.source import Source
from qpdsl.planner.check.program import check


@dataclass(frozen=True)
class Outcome:
    """`parsed` and `checked` say how far the text came without an error; `codes` are those of all findings."""

    parsed: bool
    checked: bool
    codes: tuple[str, ...]


def examine(text: str, *, pipeline: bool = False) -> Outcome:
    """Parses, checks and formats a text. Raises where one of the properties does not hold."""
    source = Source("p.qp", text)
    try:
        file = parse_pipeline(source) if pipeline else parse_file(source)
    except QpError as error:
        return Outcome(False, False, _sound(error.diagnostics, source))
    assert file.complete == (not file.gaps)
    if not pipeline and all(error.code == "QP120" for error in file.errors):
        _formats(file, text)
    try:
        return Outcome(not file.errors, True, _sound(check(file), source))
    except QpError as error:
        assert error.diagnostics
        return Outcome(not file.errors, False, _sound(error.diagnostics, source))


def _formats(file: ast.File, text: str) -> None:
    formatted = format_source(Source("p.qp", text))
    again = parse_file(Source("p.qp", formatted))
    assert again == file, formatted
    assert again.errors == () or file.errors
    assert format_source(Source("p.qp", formatted)) == formatted
    assert _comments(formatted) == _comments(text)
    assert parse_file(Source("p.qp", print_file(file))) == file


def _comments(text: str) -> list[str]:
    return sorted(token.text.rstrip() for token in scan(Source("p.qp", text), text)[0] if token.kind == "comment")


def _sound(diagnostics: tuple[Diagnostic, ...], source: Source) -> tuple[str, ...]:
    for diagnostic in diagnostics:
        assert 0 <= diagnostic.span.start <= diagnostic.span.end <= len(source.text)
        assert to_json(diagnostic, source)
        assert render(diagnostic, source)
    return tuple(diagnostic.code for diagnostic in diagnostics)
