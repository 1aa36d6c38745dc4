"""One open program: its tree, its diagnostics, and the columns at every point, as far as they are known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from qpdsl.grammar import ast
from qpdsl.grammar.ast.walk import blocks, children
from qpdsl.grammar.diagnostic import Diagnostic, QpError, in_order
from qpdsl.grammar.parse.parser import parse_file
from qpdsl.grammar.parse.tokens import scan
from qpdsl.grammar.source import Source, Span
from qpdsl.planner.check.program import lower_all
from qpdsl.planner.names.modules import Environment
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.logical import LogicalPlan
from qpdsl.planner.plan.reads import columns_inside

ColumnTypes = Mapping[str, str]


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
        diagnostics, columns = _checked(file, environment)
    except QpError as error:
        return Document(source, environment, path, None, error.diagnostics)
    return Document(source, environment, path, file, diagnostics, columns)


def _checked(file: ast.File, environment: Environment) -> tuple[tuple[Diagnostic, ...], Mapping[Span, ColumnTypes]]:
    """All diagnostics of the file, and the types of the columns after each stage, by the stage's span."""
    lowered, diagnostics = lower_all(file, environment)
    columns: dict[Span, ColumnTypes] = {}
    for program in lowered:
        # Of a program that leaves ways open, the stages of each arm are those of its ways.
        for one in [way.program for way in program.ways] or [program]:
            if one.syntax is not None:
                columns.update(_columns_after(one.syntax.body, one.plan, {}))
    return in_order(diagnostics), columns


def _columns_after(
    stages: tuple[ast.Stage, ...], plan: LogicalPlan, columns: ColumnTypes
) -> Iterator[tuple[Span, ColumnTypes]]:
    """The operators of a block are in its stages' order; those of a program called without `into` in that of `call`."""
    nodes = list(plan)
    spans = [stage.span for stage in stages if not _is_pasted(stage)]
    for stage in stages:
        if _is_pasted(stage):
            while nodes and not _is_of_another_stage(nodes[0].op, spans):
                columns = nodes.pop(0).columns
            yield stage.span, columns
            continue
        index = next((i for i, node in enumerate(nodes) if node.op.span == stage.span), None)
        if index is None:
            continue
        node = nodes[index]
        del nodes[: index + 1]
        first, columns = columns_inside(node.op, columns), node.columns
        yield stage.span, columns
        for block, inner in zip(blocks(stage), node.inside, strict=False):
            yield from _columns_after(block, inner, first)


def _is_pasted(stage: ast.Stage) -> bool:
    """Whether the operators of a called program stand in the stage's place."""
    return isinstance(stage, ast.Call) and stage.into is None


def _is_of_another_stage(op: ops.Operator, spans: list[Span]) -> bool:
    """Whether an operator after those of a `call` belongs to a stage with one of these spans, or ends the program."""
    return op.span in spans or isinstance(op, ops.Return)
