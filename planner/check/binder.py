"""The binder of one program: it resolves names to columns, parameters, models and programs, and checks types.

It is the state that the checks of the stages share: the names in scope, what holds of the rows at the current stage,
the calls entered, and the models needed so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Literal

from qpdsl.grammar import ast
from qpdsl.grammar.ast.stage import Reads
from qpdsl.grammar.ast.walk import walk, walk_stages
from qpdsl.grammar.diagnostic import Diagnostic, Label
from qpdsl.grammar.model_id import listed_models, with_adapter
from qpdsl.grammar.source import Span
from qpdsl.grammar.words import COLUMNS, OF_EACH, Type
from qpdsl.planner.names.modules import Environment, Module, misused, unknown_builtin
from qpdsl.planner.names.parameters import lists_models
from qpdsl.planner.names.schemas import CompiledSchema
from qpdsl.planner.names.scope import BoundColumn, Scope, word_span
from qpdsl.planner.names.tool_calls import CALL_OR_TEXT
from qpdsl.planner.names.types import Typer
from qpdsl.planner.names.unknown import unknown_model, unknown_schema
from qpdsl.planner.plan.logical import LogicalOp
from qpdsl.planner.plan.options import MAX_INLINED, RANGES, default_of
from qpdsl.planner.plan.reads import names, reads_all_rows, varies
from qpdsl.planner.values.value import common_type, is_list

ContextKind = Literal["chat", "prompt", "either"]
ModuleProgram = tuple[Module, ast.Program]
# The stages after which rows may have generated text.
_BRING_TEXT = ("generate", "repeat", "branch", "if", "each", "call")


@dataclass(slots=True)
class InlineBudget:
    """How many stages the calls of one file may still add."""

    stages: int = MAX_INLINED


@dataclass(frozen=True, slots=True)
class Problem:
    """What a verifier is shown as the problem where the program does not say: the first user turn, or the first prompt.

    `value` is that turn or prompt, None where there is no user turn yet. `doubt` says why it may not be the problem,
    None where it surely is; `place` is what makes it doubtful.
    """

    value: ast.Expr | None = None
    doubt: str | None = None
    place: Span | None = None


@dataclass(frozen=True, slots=True)
class Flow:
    """What holds of every row. `context` is the stage that started the context, or the first that needed one.

    `fresh` says that nothing was generated since the last `chat` or `prompt`. `spent` is the `generate` that finished
    all rows, so that no other can continue them. `aside` is a `peek` or `call` that generated what is not in the rows.
    `filtered` says that there may be no row left, `thinking` that a row may stand in a thought that is open. `written`
    are the columns that calls wrote in the rows' own conversation.
    """

    context: ast.Stage | None = None
    kind: ContextKind | None = None
    problem: Problem = Problem()
    generated: bool = False
    fresh: bool = True
    spent: ast.Stage | None = None
    aside: ast.Stage | None = None
    filtered: bool = False
    thinking: bool = False
    written: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ReturnValue:
    """What stages return: an expression, its type, and the schema that it is held to; and what, where that is none."""

    value: ast.Expr
    type: Type
    schema: CompiledSchema | None
    span: Span
    otherwise: ast.Expr | None = None


@dataclass(frozen=True, slots=True)
class BoundModel:
    """What a parameter that is a model stands for: the plan's name of it, its id and its kind of verifier.

    The id is empty where the caller of the program gives it.
    """

    key: str
    id: str
    kind: str | None = None


@dataclass(slots=True)
class Binder:
    """One program being checked.

    `calls` are the program and, inside a `call`, the called programs, the current one last. `failed` says whether a
    called program has an error of its own. `add_stage` checks a stage and appends its operators; it is a field so that
    blocks and calls, which hold stages, can use it. `models` maps the names in the plan to model ids. `stages` are the
    numbers of the next stages, `ordinals` those of the next `generate`s, `draws` those of what is left to chance next,
    `rounds` how many `repeat`s are around the current one. `spent_reported` are the stages that finish rows which a
    later one would continue, as far as that was reported. `continued` has the stages that a `call` without `into` has
    put in its place, by its identity. `model_values` says what the parameters of the current
    program that are models stand for, `values` what those of a called program do.
    """

    scope: Scope
    calls: tuple[ModuleProgram, ...]
    environment: Environment
    failed: Callable[[Module, ast.Program], bool]
    budget: InlineBudget
    add_stage: Callable[[Binder, list[LogicalOp], ast.Stage], None]
    flow: Flow = Flow()
    model_values: Mapping[str, BoundModel] = field(default_factory=dict)
    values: Mapping[str, ast.Expr] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)
    score_column: str | None = None
    stages: Iterator[int] = field(default_factory=count)
    ordinals: Iterator[int] = field(default_factory=count)
    draws: Iterator[int] = field(default_factory=count)
    rounds: int = 0
    continued: dict[int, tuple[ast.Call, tuple[ast.Stage, ...]]] = field(default_factory=dict)
    spent_reported: list[ast.Stage] = field(default_factory=list)

    @property
    def module(self) -> Module:
        """The file of the current stages: a called program's own."""
        return self.calls[-1][0]

    @property
    def program(self) -> ast.Program:
        """The program of the current stages: the called one inside a `call`."""
        return self.calls[-1][1]

    def add(self, plan: list[LogicalOp], stage: ast.Stage) -> None:
        """Checks a stage and appends its operators to the plan."""
        self.add_stage(self, plan, stage)

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
            message = f"`{stage.word}` needs a context, but no stage before it starts one"
            help = 'write `chat user=…` or `prompt "…"` before it'
            self.scope.error("QP215", message, word_span(stage), "nothing to go on from", help=help)
        self.change(context=stage)
        self.scope.start_context()
        return False

    def needs_rows(self, stage: ast.Stage, *read: ast.Expr | None) -> None:
        """Reports a missing context, or that nothing was generated yet.

        Not where `read` names a column that was made, or what every row has of its own: its number, its place, chance.
        What reads no column of the row's own needs none but those that a stage has made.
        """
        gap, known = self.scope.gap_before(stage.span.start, *_BRING_TEXT), self.scope.columns
        named = {name.id for expr in read if expr is not None for name in names(expr)}
        read_columns = known.values() if read and not named & set(COLUMNS) else map(known.get, named)
        if any(column is not None and column.maker is not None for column in read_columns):
            return  # such columns are there without a conversation too
        if any(isinstance(node, ast.Apply) and node.function in OF_EACH for node in walk(read)):
            return
        grouped = "group" in named
        if not self.needs_context(stage) or self.flow.generated or gap or grouped:
            return
        message, label = f"`{stage.word}` comes before anything is generated", "no `generate` before this stage"
        why: tuple[Label, ...] = ()
        if self.flow.aside is not None:
            message, label = f"`{stage.word}` works on generated text, and these rows have none", "no text here"
            why = (Label(word_span(self.flow.aside), "what this generates is not in the rows after it"),)
        self.scope.error("QP218", message, word_span(stage), label, secondary=why)
        self.change(generated=True)

    def needs_text(self, stage: ast.Stage) -> None:
        """Reports what `needs_rows` does, and warns where nothing was generated since the last `chat` or `prompt`."""
        empty = self.flow.generated and self.flow.fresh and not self.rounds
        self.needs_rows(stage)
        gap = self.scope.gap_before(stage.span.start, *_BRING_TEXT)
        if not empty or gap:
            return
        message = f"`{stage.word}` works on the text of this turn, in which nothing was generated yet"
        help = "move it before the last `chat` or `prompt`, or `generate` first"
        self.warn(Diagnostic("QP270", message, word_span(stage), "an empty text", help=help))

    # What stages hold

    def number(
        self,
        stage: ast.Stage,
        name: str,
        value: ast.Expr,
        place: str,
        type_: str = "int",
        reads: Reads = "parameters",
    ) -> None:
        """Checks an option that takes a number in the range of `name`."""
        what = "an int" if type_ == "int" else "a number"
        Typer(self.scope, stage, reads, place).expect(value, type_, what)
        _check_range(name, value, place, self.scope)

    def check_parts(self, stage: ast.Stage) -> None:
        """Checks the parts of a stage as they are declared, and that it has the rows that it needs."""
        parts = ast.parts(type(stage))
        if stage.needs == "rows":
            told = [getattr(stage, name) for name, part in parts if part.kind == "column" or part.reads == "row"]
            # What chooses by no column chooses among all that there is.
            columns = self.scope.columns.items()
            anything = [ast.Name(name, span=stage.span) for name, column in columns if column.maker is not None]
            self.needs_rows(stage, *([expr for expr in told if expr is not None] or anything))
        elif stage.needs == "context":
            self.needs_context(stage)
        for name, part in parts:
            if part is not ast.ELSE["role"]:  # that belongs to the result
                self.check_part(stage, name)

    def check_part(self, stage: ast.Stage, name: str, *, place: str = "") -> None:
        """Checks an expression of a stage, or a column that it reads, as it is declared; `place`: see `Role`."""
        self.check_value(stage, dict(ast.parts(type(stage)))[name], getattr(stage, name), name, place=place)

    def check_value(self, stage: ast.Stage, part: ast.Role, value: Any, name: str = "", *, place: str = "") -> None:
        """The same of what stands in a part of a stage."""
        place = place or part.place or (f"`{name}`" if part.lead.strip("=") else "")
        if value is None:
            return
        if part.kind == "column":
            self._column(stage, value, place)
        elif part.range is not None:
            self.number(stage, part.limit, value, place, part.range.type, part.reads_of(stage))
        elif part.kind == "value":
            typer = Typer(self.scope, stage, part.reads_of(stage), place)
            if part.accepts is None:
                typer.type(value)
            else:
                typer.expect(value, part.accepts, part.what)
            if part.tells_apart:
                warn_same_key(self.scope, value, place)

    def needs_draws(self, stage: ast.Generate, message: str, span: Span, help: str) -> bool:
        """Whether each token of a text is drawn from one distribution; where it is not, that is reported."""
        clause: ast.Node | None = None if isinstance(stage.via, ast.Contrast) else stage.via
        what = "its tokens come from more than one distribution"
        if isinstance(stage.target, ast.ChoiceTarget | ast.OptionsTarget):
            clause, what = stage.target, "an option is chosen as a whole"
        if clause is not None:
            why = (Label(clause.span, what),)
            self.scope.error("QP253", message, span, "no figures", secondary=why, help=help)
        return clause is None

    def _column(self, stage: ast.Stage, name: ast.Name, place: str) -> None:
        """Checks a column that a stage reads by its name."""
        scope = self.scope
        if name.id in scope.params and name.id not in scope.columns:
            scope.error("QP203", f"{place} takes a column, but `{name.id}` is a parameter", name.span)
        else:
            scope.column(name, stage, role="answer" if isinstance(stage, ast.Vote) and name is stage.column else None)
        if name is getattr(stage, "per", None):
            self._warn_per(name)

    def _warn_per(self, per: ast.Name) -> None:
        """Warns of `per group` in a program that makes no groups."""
        column, body = self.scope.columns.get(per.id), self.calls[0][1].body
        if per.id != "group" or column is None or column.maker is not None:
            return
        splits = any(
            isinstance(stage, ast.Split) or (isinstance(stage, ast.Call) and stage.into is None)
            for stage in walk_stages(body)
        )
        if not splits and not self.scope.gaps:
            help = "make them with `split` after the first `chat` or `prompt`"
            message = "all rows are in one group, as no `split` makes more"
            self.warn(Diagnostic("QP305", message, per.span, "the same in every row", help=help))

    def schema(self, name: str, span: Span, forms: str | None = None) -> CompiledSchema | None:
        """A schema by its name; None where it has an error, or is not known, which is reported; `forms`: see there."""
        schemas = self.module.schemas
        if name not in schemas and "schema" not in self.module.missing:
            self.scope.report(unknown_schema(name, span, schemas.names(), forms))
        return schemas.get(name)

    def asks(self, ref: ast.ModelRef, *, scores: bool = False) -> ast.ModelRef:
        """A model as operators name it: see `model`."""
        return ast.model_named(self.model(ref, scores=scores), ref.span)

    def model(self, ref: ast.ModelRef, *, scores: bool = False, module: Module | None = None, used: bool = True) -> str:
        """The plan's name of a model: the one that the program gives it, else its id.

        Reports a model that is known not to write text or, with `scores`, not to be a verifier, but not where it is
        only handed on and not `used`. `module` is the file that names it, by default that of the current stages.
        """
        module = module or self.module
        bound = None if ref.quoted or module is not self.module else self.model_values.get(ref.name)
        if bound is not None:
            for fault in misused(ref, bound.id, bound.kind, scores=scores) if bound.id and used else ():
                self.scope.report(fault)
            self.models.setdefault(bound.key, bound.id)
            return bound.key
        if ref.quoted or ref.name in module.models:
            id = ref.name if ref.quoted else module.models[ref.name]
            kind = None if ref.quoted else module.kinds.get(ref.name)
            if ref.quoted and (unknown := unknown_builtin(id, ref.span)) is not None:
                self.scope.report(unknown)
            for fault in misused(ref, id, kind, scores=scores) if used else ():
                self.scope.report(fault)
            return self.model_key(ref.name, id)
        if self.several(ref.name):
            help = f"`each m in {ref.name} {{ … }}` runs stages with each of them"
            self.scope.error("QP201", f"`{ref.name}` is a list of models", ref.span, "not one model", help=help)
        elif "model" not in module.missing:
            self.scope.report(unknown_model(ref, module.models))
        return ref.name

    def names_model(self, name: str) -> bool:
        """Whether the current stages can name a model so: one that is declared, or a parameter."""
        return name in self.model_values or name in self.module.models

    def several(self, name: str) -> tuple[BoundModel, ...]:
        """The models that a parameter of this name lists; none where there is no such parameter."""
        return tuple(model for key, model in self.model_values.items() if key.rpartition("[")[0] == name)

    def kind_of(self, name: str) -> str | None:
        """The kind of verifier that a named model is declared to be; None where nothing is said of it."""
        bound = self.model_values.get(name)
        return bound.kind if bound is not None else self.module.kinds.get(name)

    def model_key(self, name: str, id: str) -> str:
        """The plan's name of the model of that id: `name`, unless it stands for another in the program or the plan."""
        main = self.calls[0][0]
        own = main.names.get(self.module, "") + name
        named = next((known for known in (name, own) if main.models.get(known) == id), None)
        declared = named is not None or name not in main.models
        key = (named or name) if declared and self.models.get(named or name, id) == id else id
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
        self.scope.columns.pop(name.id, None)
        self.scope.columns[name.id] = BoundColumn(type_, stage, schema)


def bind_default_models(binder: Binder, params: Mapping[str, ast.Param]) -> None:
    """Binds the parameters of a program that are models to what the user names for them, else to their defaults."""
    environment, bound = binder.environment, dict[str, BoundModel]()
    for name, param in params.items():
        given, adapter = environment.models.get(name, ""), environment.adapters.get(name)
        of_several = lists_models(param)
        listed = param.default.items if isinstance(param.default, ast.ListLiteral) else ()
        ids = listed_models(given) if of_several else [given] if given else []
        for at, value in enumerate(ids or (of_several and listed) or (param.default,)):
            # One of several goes by its place in the list.
            key, id, kind = f"{name}[{at}]" if of_several else name, "", environment.kinds.get(name)
            kind = environment.kinds.get(key, kind)
            if isinstance(value, str):
                id = value
            elif isinstance(value, ast.Name) and value.id in binder.module.models:
                id, kind = binder.module.models[value.id], kind or binder.module.kinds.get(value.id)
            elif isinstance(value, ast.Template):
                id = "".join(part for part in value.parts if isinstance(part, str))
                if (unknown := unknown_builtin(id, value.span)) is not None:
                    binder.scope.report(unknown)
            bound[key] = BoundModel(key, with_adapter(id, adapter) if id else "", kind)
    binder.model_values = bound


def return_value(binder: Binder, stages: tuple[ast.Stage, ...], whole: Span) -> ReturnValue:
    """What checked stages return: the value of `return`, else the voted column, else `text`.

    Where they end in a `call` that goes on with another program's stages, what these return.
    """
    last = next((stage for stage in stages if isinstance(stage, ast.Return)), stages[-1] if stages else None)
    if isinstance(last, ast.Call) and id(last) in binder.continued:
        return replace(return_value(binder, binder.continued[id(last)][1], whole), span=last.span)
    if isinstance(last, ast.Return):
        if not binder.scope.columns:
            binder.needs_context(last)
        type_ = Typer(binder.scope, last, "first row").type(last.value)
        value, span = last.value, last.span
    else:
        span = last.span if last else whole
        value = ast.Name(last.column.id if isinstance(last, ast.Vote) else "text", span=span)
        columns, gaps = binder.scope.columns, binder.scope.gaps
        known = not any(text.startswith("return") for _, text in gaps) and (bool(columns) or not gaps)
        if last is not None and value.id == "text" and "text" not in columns and known:
            made = next(reversed(columns), "VALUE")
            message = "the program gives back `text`, but no stage starts a context"
            binder.scope.error("QP215", message, span, "no text after this", help=f"end it with `return {made}`")
        voted = binder.scope.columns.get(value.id)
        type_ = voted.type if voted else "unknown"
    column = binder.scope.columns.get(value.id) if isinstance(value, ast.Name) else None
    otherwise = getattr(last, "otherwise", None) if isinstance(last, ast.ENDS) else None
    if otherwise is not None and last is not None:
        other = Typer(binder.scope, last, "first row", "`else`").type(otherwise)
        both = common_type(type_, other) or (CALL_OR_TEXT.get(type_) if other == "text" else None)
        if both is None and "unknown" not in (type_, other):
            message, why = f"the result is {type_}, but `else` gives {other}", (Label(span, f"this gives {type_}"),)
            binder.scope.error("QP214", message, otherwise.span, f"this is {other}", secondary=why)
        type_ = both or type_
    return ReturnValue(value, type_, column.schema if column else None, span, otherwise)


def warn_same_key(scope: Scope, key: ast.Expr, place: str) -> None:
    """Warns of an aggregate by which rows are to be told apart, though it is the same for all of them."""
    of_list = any(is_list(scope.columns[name.id].type) for name in names(key) if name.id in scope.columns)
    if reads_all_rows(key) and not varies(key, scope.columns) and not of_list:
        message = f"{place} is to tell rows apart, and this looks at all of them"
        help = "name the column alone, or say `per COLUMN` inside the parentheses"
        fault = Diagnostic("QP305", message, key.span, "the same for every row", help=help, severity="warning")
        scope.report(fault)


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
