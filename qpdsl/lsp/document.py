"""One open program: its tree, what is wrong with it, and the columns at every point."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import Diagnostic, QpError
from qpdsl.grammar.parse.parser import parse_file
from qpdsl.grammar.parse.tokens import scan
from qpdsl.grammar.source import Source
from qpdsl.lsp.columns import Relations, relations
from qpdsl.planner.names.modules import Environment


@dataclass(frozen=True)
class Document:
    """`file` is None for what is no program text at all. `path` is where the program lies, if it is a file."""

    source: Source
    environment: Environment
    path: Path | None = None
    file: ast.File | None = None
    found: tuple[Diagnostic, ...] = ()
    relations: Relations = field(default_factory=dict)

    def program_at(self, offset: int) -> ast.Program | None:
        programs = self.file.programs if self.file else ()
        return next((program for program in programs if program.span.start <= offset <= program.span.end), None)

    def nodes_at(self, offset: int) -> list[ast.Node]:
        """The nodes of the tree that hold a point of the text, outermost first."""
        found: list[ast.Node] = []
        here: ast.Node | None = self.file
        while here is not None:
            here = next((node for node in children(here) if node.span.start <= offset < node.span.end), None)
            if here is not None:
                found.append(here)
        return found

    def columns_before(self, program: ast.Program, offset: int) -> Mapping[str, str]:
        """The columns, with their types, of the rows that reach a point of a program."""
        return self._before(program.body, offset, {})

    def _before(self, stages: tuple[ast.Stage, ...], offset: int, columns: Mapping[str, str]) -> Mapping[str, str]:
        for stage in stages:
            if stage.span.end <= offset:
                columns = self.relations.get(stage.span, columns)
            elif stage.span.start < offset:
                inside = next((block for block in blocks(stage) if self._holds(block, offset)), ())
                return self._before(inside, offset, columns)
        return columns

    def _holds(self, block: tuple[ast.Stage, ...], offset: int) -> bool:
        """Whether a point lies between the braces of a block, behind the start of its first stage."""
        if not block or offset < block[0].span.start:
            return False
        rest = self.source.text[block[-1].span.end : offset]
        return all(token.text != "}" for token in scan(Source("", rest), rest)[0])


def read(source: Source, environment: Environment, path: Path | None = None) -> Document:
    """Parses and checks a text, however broken it is."""
    try:
        file = parse_file(source)
        found, columns = relations(file, environment)
    except QpError as error:
        return Document(source, environment, path, None, error.diagnostics)
    return Document(source, environment, path, file, found, columns)


def children(node: ast.Node) -> Iterator[ast.Node]:
    """The nodes right below a node."""
    for one in fields(node):
        yield from _nodes(getattr(node, one.name))


def blocks(stage: ast.Stage) -> tuple[tuple[ast.Stage, ...], ...]:
    """The blocks of stages inside a stage."""
    match stage:
        case ast.Repeat(body=body) | ast.Peek(body=body):
            return (body,)
        case ast.Branch(arms=arms):
            return arms
    return ()


def _nodes(value: object) -> Iterator[ast.Node]:
    if isinstance(value, ast.Node):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from _nodes(part)
