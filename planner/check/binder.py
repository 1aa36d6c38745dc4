"""The binder of one program: it resolves names to columns, parameters, models and programs, and checks types.

It is the state that the checks of the stages share: the names in scope, what holds of the rows at the current stage,
the calls entered, and the models needed so far.
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
from qpdsl.planner.names.schemas import CompiledSchema
from qpdsl.planner.names.scope import BoundColumn, Scope, stage_word, word_span
from qpdsl.planner.names.types import Typer
from qpdsl.planner.names.unknown import unknown_model
from qpdsl.planner.plan.logical import PlanBuilder
from qpdsl.planner.plan.options import MOST_INLINED, RANGES, default_of

ContextKind = OneOf["chat", "prompt", "either"]
ModuleProgram = tuple[Module, ast.Program]


@dataclass(slots=True)
class InlineBudget:
    """How many stages the calls of one file may still add."""

    stages: int = MOST_INLINED


@dataclass(frozen=True, slots=True)
class Flow:
    """What holds of every row. `context` is the stage that started the context, or the first that needed one.

    `fresh` says that nothing was generated since the last `chat` or `prompt`. `spent` is the `generate` that finished
    all rows, so that no other can continue them. `filtered` says that there may be no row left.
    """

    context: ast.Stage | None = None
    kind: ContextKind | None = None
    generated: bool = False
    fresh: bool = True
    spent: ast.Stage | None = None
    filtered: bool = False


@dataclass(frozen=True, slots=True)
class ReturnValue:
    """What stages return: an expression, its type, and the schema that it is held to."""

    value: ast.Expr
    type: Type
    schema: CompiledSchema | None
    span: Span


@dataclass(slots=True)
class Binder:
    """One program being checked.

    `calls` are the program and, inside a `call`, the called programs, the current one last. `failed` says whether a
    called program has an error of its own. `add_stage` checks a stage and appends its operators; it is a field so that
    blocks and calls, which hold stages, can use it. `models` maps the names in the plan to model ids. `stage` is the
    number of the last stage, `rounds` how many `repeat`s are around the current one.
    """

    scope: Scope
    calls: tuple[ModuleProgram, ...]
    environment: Environment
    failed: Callable[[Module, ast.Program], bool]
    budget: InlineBudget
    add_stage: Callable[[Binder, PlanBuilder, ast.Stage], None]
    flow: Flow = Flow()
    models: dict[str, str] = field(default_factory=dict)
    score_column: str | None = None
    stage: int = -1
    rounds: int = 0

    @property
    def module(self) -> Module:
        """The file of the current stages: a called program's own."""
        return self.calls[-1][0]

    @property
    def program(self) -> ast.Program:
        """The program of the current stages: the called one inside a `call`."""
        return self.calls[-1][1]

    def add(self, plan: PlanBuilder, stage: ast.Stage) -> None:
        """Checks a stage and appends its operators to the plan."""
        self.add_stage(self, plan, stage)

    def next_stage(self) -> int:
        self.stage += 1
        return self.stage

    def change(self, **changes: object) -> None:
        self.flow = replace(self.flow, **changes)  # type: ignore[arg-type]

    def warn(self, diagnostic: Diagnostic) -> None:
        self.scope.report(replace(diagnostic, severity="warning"))

    # What stages need

    def needs_context(self, stage: ast.Stage) -> bool:
        """Reports a missing context. Says whether there was one."""
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
        """Reports a missing context, or that nothing was generated yet."""
        gap = self.scope.gap_before(stage.span.start, "generate", "repeat", "branch", "call")
        if not self.needs_context(stage) or self.flow.generated or gap:
            return
        message = f"`{stage_word(stage)}` comes before anything is generated"
        self.scope.error("QP218", message, word_span(stage), "no `generate` before this stage")
        self.change(generated=True)

    # What stages hold

    def expect(self, stage: ast.Stage, place: str, value: ast.Expr, type_: str, what: str) -> Type:
        """The type of an option, which reads parameters only; "unknown" where it is not `type_` (`what` in words)."""
        return Typer(self.scope, stage, "parameters", place).expect(value, type_, what)

    def number(self, stage: ast.Stage, name: str, value: ast.Expr, place: str, type_: str = "int") -> None:
        """Checks an option that takes a number in the range of `name`."""
        self.expect(stage, place, value, type_, "an int" if type_ == "int" else "a number")
        _check_range(name, value, place, self.scope)

    def model(self, ref: ast.ModelRef) -> str:
        """The plan's name of a model: the one that the program gives it, else its id."""
        if ref.quoted:
            return self._model_key(ref.name, ref.name)
        if ref.name in self.module.models:
            return self._model_key(ref.name, self.module.models[ref.name])
        if "model" not in self.module.missing:
            self.scope.report(unknown_model(ref, self.module.models))
        return ref.name

    def _model_key(self, name: str, id: str) -> str:
        """`name`, unless the outermost program or an earlier stage uses it for another id."""
        declared = self.calls[0][0].models.get(name, id)
        key = name if declared == id and self.models.get(name, id) == id else id
        self.models.setdefault(key, id)
        return key

    def make(self, stage: ast.Stage, name: ast.Name, type_: Type, schema: CompiledSchema | None = None) -> None:
        """Adds the column that the stage makes, in the place of one of that name."""
        if name.id in self.scope.params:
            declared = (Label(self.scope.params[name.id].name_span, "declared here"),)
            message = f"`{name.id}` is a parameter and cannot be a column too"
            self.scope.error("QP208", message, name.span, secondary=declared)
            if len(self.calls) == 1:
                return
        if self.scope.columns:
            self.scope.columns.pop(name.id, None)
            self.scope.columns[name.id] = BoundColumn(type_, stage, schema)


def return_value(binder: Binder, stages: tuple[ast.Stage, ...], whole: Span) -> ReturnValue:
    """What checked stages return: the value of `return`, else the voted column, else `text`."""
    last = next((stage for stage in stages if isinstance(stage, ast.Return)), stages[-1] if stages else None)
    if isinstance(last, ast.Return):
        binder.needs_context(last)
        type_ = Typer(binder.scope, last, "first row").type(last.value)
        value, span = last.value, last.span
    else:
        span = last.span if last else whole
        value = ast.Name(last.column.id if isinstance(last, ast.Vote) else "text", span=span)
        voted = binder.scope.columns.get(value.id)
        type_ = voted.type if voted else "unknown"
    column = binder.scope.columns.get(value.id) if isinstance(value, ast.Name) else None
    return ReturnValue(value, type_, column.schema if column else None, span)


def _check_range(name: str, expr: ast.Expr, place: str, scope: Scope) -> None:
    """Reports a literal, or a parameter's default, outside the range of option `name`, which messages call `place`."""
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
