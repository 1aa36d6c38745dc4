"""Rows, expressions and an instance made by hand, for operators that need no model."""

from __future__ import annotations

from typing import Any

from qpdsl.executor.engine.paged_engine import PagedEngine
from qpdsl.executor.events.stream import EventStream
from qpdsl.executor.runtime.instance.candidates import Candidates, Row
from qpdsl.executor.runtime.instance.instance import Instance, Services
from qpdsl.grammar import ast
from qpdsl.grammar.parse.parser import parse_file
from qpdsl.grammar.source import Source, Span

NOWHERE = Span(0, 0)


def instance() -> Instance:
    """An instance without models; the program's parameter `k` is 2."""
    return Instance("", Services(PagedEngine(), {}, {}, EventStream()), {"k": 2}, 0)


def rows(*columns: dict[str, Any]) -> Candidates:
    """A row for each mapping of columns, its number as its path."""
    return tuple(Row(None, (index,), {"text": "", **named}) for index, named in enumerate(columns))


def expr(text: str) -> ast.Expr:
    file = parse_file(Source("e.qp", f"program p() {{\n return {text}\n}}"))
    (stage,) = file.programs[0].body
    assert isinstance(stage, ast.Return)
    return stage.value


def name(id: str) -> ast.Name:
    return ast.Name(id, span=NOWHERE)


def paths(result: Candidates) -> list[int]:
    return [row.path[0] for row in result]
