"""One open program: its tree, its diagnostics, and the columns at every point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from qpdsl.grammar import ast
from qpdsl.grammar.ast.walk import blocks, children
from qpdsl.grammar.diagnostic import Diagnostic, QpError
from qpdsl.grammar.parse.parser import parse_file
from qpdsl.grammar.parse.tokens import scan
from qpdsl.grammar.source import Source, Span
from qpdsl.lsp.columns import ColumnTypes, check_columns
from qpdsl.planner.names.modules import Environment


@dataclass(frozen=True)
class Document:
    """`file` is None where the text cannot be parsed at all. `path` is where the program lies, if it is a file.

    `columns_after` holds, by the span of each stage, the types of the columns after it.
    """

    source: Source
    environment: Environment
    path: Path | None = None
    file: ast.File | None = None
    diagnostics: tuple[Diagnostic, ...] = ()
    columns_after: Mapping[Span, ColumnTypes] = field(default_factory=dict)

    def program_at(self, offset: int) -> ast.Program | None:
        programs = self.file.programs if self.file else ()
        return next((program for program in programs if program.span.start <= offset <= program.span.end), None)

    def nodes_at(self, offset: int) -> list[ast.Node]:
        """The nodes of the tree that contain a point of the text, outermost first."""
        nodes: list[ast.Node] = []
        node: ast.Node | None = self.file
        while node is not None:
            node = next((child for child in children(node) if child.span.start <= offset < child.span.end), None)
            if node is not None:
                nodes.append(node)
        return nodes

    def columns_before(self, program: ast.Program, offset: int) -> ColumnTypes:
        """The columns, with their types, of the rows that reach a point of a program."""
        return self._columns_in(program.body, offset, {})

    def _columns_in(self, stages: tuple[ast.Stage, ...], offset: int, columns: ColumnTypes) -> ColumnTypes:
        for stage in stages:
            if stage.span.end <= offset:
                columns = self.columns_after.get(stage.span, columns)
            elif stage.span.start < offset:
                block = next((block for block in blocks(stage) if self._contains(block, offset)), ())
                return self._columns_in(block, offset, columns)
        return columns

    def _contains(self, block: tuple[ast.Stage, ...], offset: int) -> bool:
        """Whether a point lies between the braces of a block, behind the start of its first stage."""
        if not block or offset < block[0].span.start:
            return False
        rest = self.source.text[block[-1].span.end : offset]
        return all(token.text != "}" for token in scan(Source("", rest), rest)[0])


def read(source: Source, environment: Environment, path: Path | None = None) -> Document:
    """Parses and checks a text, which may have any errors."""
    try:
        file = parse_file(source)
        diagnostics, columns = check_columns(file, environment)
    except QpError as error:
        return Document(source, environment, path, None, error.diagnostics)
    return Document(source, environment, path, file, diagnostics, columns)
