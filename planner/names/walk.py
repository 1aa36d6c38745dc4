"""Where the checker is in a program: the names in scope, what holds of the rows, what was found so far.

MERGED: What a program gives back: an expression, its type, and the schema that it is held to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal as OneOf

from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import Diagnostic, Label
from qpdsl.grammar.source import Span
from qpdsl.grammar.words import Type
from qpdsl.planner.names.modules import Environment, Module
from qpdsl.planner.names.schemas import Schema
from qpdsl.planner.names.scope import Column, Scope, stage_word, word_span
from qpdsl.planner.names.types import reader
from qpdsl.planner.names.unknown import unknown_model
from qpdsl.planner.plan.options import MOST_INLINED, RANGES, default_of


@dataclass(slots=True)
class Room:
    """How many stages the calls of one file may still add."""

    stages: int = MOST_INLINED


ContextKind = OneOf["chat", "prompt", "either"]


@dataclass(frozen=True, slots=True)
class Flow:
    """What holds of every row. `context` is the stage that started the context, or the first that needed one.

    `fresh` says that nothing was generated since the last `chat` or `prompt`; `spent` is the `generate` that finished
    all rows, so that no other can go on from it. `filtered` says that there may be no row left.
    """

    context: ast.Stage | None = None
    kind: ContextKind | None = None
    generated: bool = False
    fresh: bool = True
    spent: ast.Stage | None = None
    filtered: bool = False


@dataclass(slots=True)
class Walk:
    """One program being checked. `module` is the file that the stages at hand come from: a called program's own.

    `rounds` counts the `repeat`s around the stages at hand.
    """

    scope: Scope
    module: Module
    environment: Environment
    failed: Callable[[Module, ast.Program], bool]
    room: Room
    draft: ast.ModelRef | None = None
    root: Module = field(init=False)
    flow: Flow = Flow()
    models: dict[str, str] = field(default_factory=dict)
    score_column: str | None = None
    calls: tuple[tuple[Module, ast.Program], ...] = ()
    stage: int = -1
    rounds: int = 0

    def __post_init__(self) -> None:
        self.root = self.module

    def next(self) -> int:
        self.stage += 1
        return self.stage

    def change(self, **changes: object) -> None:
        self.flow = replace(self.flow, **changes)  # type: ignore[arg-type]

    def warn(self, diagnostic: Diagnostic) -> None:
        self.scope.report(replace(diagnostic, severity="warning"))

    # What stages need

    def needs_context(self, stage: ast.Stage) -> bool:
        if self.flow.context is not None:
            return True
        if not self.scope.gap_before(stage.span.start, "chat", "prompt"):
            message = f"`{stage_word(stage)}` needs a context, but no stage before it starts one"
            help = 'write `chat user=…` or `prompt "…"` before it'
            self.scope.error("QP215", message, word_span(stage), "nothing to go on from", help=help)
        self.change(context=stage)
        self.scope.start_context()
        return False

    def needs_rows(self, stage: ast.Stage) -> None:
        gap = self.scope.gap_before(stage.span.start, "generate", "repeat", "branch", "call")
        if not self.needs_context(stage) or self.flow.generated or gap:
            return
        message = f"`{stage_word(stage)}` comes before anything is generated"
        self.scope.error("QP218", message, word_span(stage), "no `generate` before this stage")
        self.change(generated=True)

    # What stages hold

    def expect(self, stage: ast.Stage, place: str, value: ast.Expr, type_: str, what: str) -> Type:
        """The type of an option, which reads parameters only; "unknown" where it is not the one wanted."""
        return reader(self.scope, stage, "parameters", place).expect(value, type_, what)

    def number(self, stage: ast.Stage, name: str, value: ast.Expr, place: str, type_: str = "int") -> None:
        """An option that takes a number in the range of `name`."""
        self.expect(stage, place, value, type_, "an int" if type_ == "int" else "a number")
        _check_range(name, value, place, self.scope)

    def model(self, ref: ast.ModelRef) -> str:
        """The name that the plan knows a model by: the one that the program gives it, else its id."""
        if ref.quoted:
            return self._known(ref.name, ref.name)
        if ref.name in self.module.models:
            return self._known(ref.name, self.module.models[ref.name])
        if "model" not in self.module.missing:
            self.scope.report(unknown_model(ref, self.module.models))
        return ref.name

    def _known(self, name: str, id: str) -> str:
        key = name if self.root.models.get(name, id) == id and self.models.get(name, id) == id else id
        self.models.setdefault(key, id)
        return key

    def make(self, stage: ast.Stage, name: ast.Name, type_: Type, schema: Schema | None = None) -> None:
        """A column that the stage makes, in the place of one of that name."""
        if name.id in self.scope.params:
            declared = (Label(self.scope.params[name.id].name_span, "declared here"),)
            message = f"`{name.id}` is a parameter and cannot be a column too"
            self.scope.error("QP208", message, name.span, secondary=declared)
            if len(self.calls) == 1:
                return
        if self.scope.columns:
            self.scope.columns.pop(name.id, None)
            self.scope.columns[name.id] = Column(type_, stage, schema)


@dataclass(frozen=True, slots=True)
class Result:
    value: ast.Expr
    type: Type
    schema: Schema | None
    span: Span


def result(walk: Walk, stages: tuple[ast.Stage, ...], whole: Span) -> Result:
    """The result of stages that have been walked: what `return` says, else the voted column, else `text`."""
    last = next((stage for stage in stages if isinstance(stage, ast.Return)), stages[-1] if stages else None)
    columns = walk.scope.columns
    if isinstance(last, ast.Return):
        walk.needs_context(last)
        columns = walk.scope.columns
        type_ = reader(walk.scope, last, "first row").type(last.value)
        value, span = last.value, last.span
    else:
        span = last.span if last else whole
        value = ast.Name(last.column.id if isinstance(last, ast.Vote) else "text", span=span)
        type_ = columns[value.id].type if value.id in columns else "unknown"
    column = columns.get(value.id) if isinstance(value, ast.Name) else None
    return Result(value, type_, column.schema if column else None, span)


def _check_range(name: str, expr: ast.Expr, place: str, scope: Scope) -> None:
    """Reports a literal, or a parameter's default, that is out of the range of option `name`, said as `place`."""
    value, declared = default_of(expr, scope.params)
    allowed = RANGES[name]
    if not isinstance(value, ast.Literal) or type(value.value) not in (int, float):
        return
    if allowed.type == "int" and type(value.value) is float:  # a wrong type, which is another error
        return
    if allowed.holds(value.value):  # type: ignore[arg-type]
        return
    message = f"{place} is {allowed}, found {value.value}"
    if declared is None:
        scope.error("QP301", message, expr.span, "out of range")
    else:
        why = (Label(expr.span, f"used for {place} here"),)
        scope.error("QP301", message, declared, "this default is out of range", secondary=why)
