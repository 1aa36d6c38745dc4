"""Programs lowered from their text, and what tests ask of the plans."""

from __future__ import annotations

import pytest

from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import QpError
from qpdsl.grammar.parse.parser import parse_file, parse_pipeline
from qpdsl.grammar.source import Source, Span
from qpdsl.planner.check.program import lower
from qpdsl.planner.names.modules import Environment
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.logical import LogicalProgram

START = "chat user=problem | generate llm n=4 | score prm | extract answer = /x/ | "


def lowered(text: str) -> LogicalProgram:
    """The program of a `-e` pipeline."""
    return lower(parse_pipeline(Source("-e", text)))


def program_of(text: str, name: str | None = None, environment: Environment | None = None) -> LogicalProgram:
    """A program of a file."""
    return lower(parse_file(Source("p.qp", text)), name, environment or Environment())


def chain(program: LogicalProgram) -> list[ops.Operator]:
    return [node.op for node in program.plan]


def last(program: LogicalProgram) -> ops.Return:
    op = program.plan[-1].op
    assert isinstance(op, ops.Return)
    return op


def name(id: str) -> ast.Name:
    return ast.Name(id, span=Span(0, 0))


def codes(text: str) -> list[str]:
    """The errors of a pipeline."""
    with pytest.raises(QpError) as error:
        lowered(text)
    return [diagnostic.code for diagnostic in error.value.diagnostics]
