"""Declarations and columns that nothing reads. Told only of files without errors, which may be the cause."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import Diagnostic
from qpdsl.grammar.source import Span
from qpdsl.planner.scope import word_span
from qpdsl.planner.substitute import walk


def unused_declarations(file: ast.File) -> Iterator[Diagnostic]:
    """Models and schemas that no program of the file needs. What `-e` brings along is declared nowhere."""
    models = {node.name for node in walk(file.programs) if isinstance(node, ast.ModelRef) and not node.quoted}
    for model in file.models:
        if model.name not in models and model.name_span != model.span:
            yield _warning("QP233", f"model `{model.name}` is not used", model.name_span)
    types = {node.name for node in walk((file.programs, file.schemas)) if isinstance(node, ast.TypeRef)}
    targets = {node.name for node in walk(file.programs) if isinstance(node, ast.SchemaTarget)}
    for schema in file.schemas:
        if schema.name not in types | targets:
            yield _warning("QP235", f"schema `{schema.name}` is not used", schema.name_span)


def unused_in(program: ast.Program, score_column: str | None) -> Iterator[Diagnostic]:
    """Parameters and columns that a program does not read; a row's score is reported, and so is read."""
    names = {node.id for node in walk(program.body) if isinstance(node, ast.Name)}
    for param in program.params:
        if param.name not in names:
            yield _warning("QP234", f"parameter `{param.name}` is not used", param.name_span)
    uses = _Uses()
    uses.walk(program.body)
    last = program.body[-1] if program.body else None
    if isinstance(last, ast.Vote):
        uses.read(last.column.id)
    elif not isinstance(last, ast.Return):
        uses.read("text")
    for made in uses.made:
        if made.name != score_column and uses.last.get(made.name, -1) < made.since:
            yield _warning("QP232", f"column `{made.name}` is never read", made.span, "only `--rows` would show it")


def _warning(code: str, message: str, span: Span, label: str = "") -> Diagnostic:
    return Diagnostic(code, message, span, label, severity="warning")


@dataclass(frozen=True, slots=True)
class _Made:
    """A column made; `since` is the place from which on a reader may see it: in a loop, the loop's start."""

    name: str
    span: Span
    since: int


@dataclass(slots=True)
class _Uses:
    """Columns made and read, in reading order; `last` holds the last place that reads a name."""

    made: list[_Made] = field(default_factory=list)
    last: dict[str, int] = field(default_factory=dict)
    place: int = 0
    loop: int | None = None

    def read(self, name: str) -> None:
        self.last[name] = self.place

    def walk(self, stages: tuple[ast.Stage, ...]) -> None:
        for stage in stages:
            self.place += 1
            match stage:
                case ast.Repeat(body=body, until=until):
                    outer = self.loop
                    self.loop = self.place if outer is None else outer
                    self.walk(body)
                    self._expressions(until)
                    self.loop = outer
                case ast.Branch(arms=arms):
                    for arm in arms:
                        self.walk(arm)
                case ast.Extract(column=column):
                    self._make(column.id, column.span)
                case ast.Generate(into=into) | ast.Call(into=into):
                    if into is not None:
                        self._make(into.id, into.span)
                case ast.Score(into=into):
                    self._make(into.id if into else "score", into.span if into else word_span(stage))
                case _:
                    self._expressions(stage)

    def _make(self, name: str, span: Span) -> None:
        self.made.append(_Made(name, span, self.place + 1 if self.loop is None else self.loop))

    def _expressions(self, node: ast.Node | None) -> None:
        for inner in walk(node):
            if isinstance(inner, ast.Name):
                self.read(inner.id)
