"""Stages to operators, checked one by one as they are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import Diagnostic, Edit, Label
from qpdsl.grammar.source import Span
from qpdsl.grammar.suggest import closest
from qpdsl.planner import ops
from qpdsl.planner.chain import Chain
from qpdsl.planner.infer import reader
from qpdsl.planner.logical import LogicalPlan
from qpdsl.planner.options import check_range, default_of
from qpdsl.planner.scope import NUMBERS, Column, Scope, Type, made_name, stage_word, word_span

_SORTABLE = NUMBERS | {"bool"}
_OPTIONS = {"n": "int", "temperature": "float", "top_p": "float", "top_k": "int", "min_p": "float", "max_tokens": "int"}
_IN_WORDS = {"int": "an int", "float": "a number"}


class StageChecker:
    """Walks the stages of one program once, in order, building the plan and reporting what is wrong.

    The plan is of use only where nothing was reported.
    """

    def __init__(self, scope: Scope, models: Mapping[str, str], *, models_known: bool) -> None:
        self.scope = scope
        self.declared = models
        self.models_known = models_known
        self.models: dict[str, str] = {}
        self.score_column: str | None = None
        self.returns: Type = "text"
        self._context: ast.Stage | None = None
        self._generated = False
        self._stage = -1

    def program(self, stages: tuple[ast.Stage, ...], whole: Span) -> LogicalPlan:
        """The plan of a program's body, with a `Return` at its end."""
        plan = Chain(ops.Start(stage=-1, span=whole), {})
        for index, stage in enumerate(stages):
            self._add(plan, stage)
            if isinstance(stage, ast.Return):
                if index + 1 < len(stages):
                    first = (Label(stage.span, "the program ends here"),)
                    what = word_span(stages[index + 1])
                    self.scope.error("QP217", "nothing runs after `return`", what, "never reached", secondary=first)
                break
        else:
            self._implicit_return(plan, stages[-1] if stages else None, whole)
        return plan.done()

    def _implicit_return(self, plan: Chain, last: ast.Stage | None, whole: Span) -> None:
        column = last.column.id if isinstance(last, ast.Vote) else "text"
        self.returns = self.scope.columns[column].type if column in self.scope.columns else "unknown"
        span = last.span if last else whole
        value = ast.Name(column, span=span)
        plan.add(ops.Return(value, stage=self._next(), span=span), self.scope.types())

    def _next(self) -> int:
        self._stage += 1
        return self._stage

    def _add(self, plan: Chain, stage: ast.Stage) -> None:
        number = self._next()
        op = self._operator(stage, number)
        if op is not None:
            plan.add(op, self.scope.types())

    def _operator(self, stage: ast.Stage, number: int) -> ops.Operator | None:
        match stage:
            case ast.Prompt() | ast.Chat():
                return self._set_context(stage, number)
            case ast.Generate():
                self._needs_context(stage)
                return self._generate(stage, number)
            case ast.Score():
                return self._score(stage, number)
            case ast.Extract():
                self._needs_rows(stage)
                self._make(stage, stage.column, "text")
                return ops.Extract(stage.column.id, stage.pattern, stage=number, span=stage.span)
            case ast.Keep():
                self._needs_rows(stage)
                self._count(stage, stage.count, "the number of rows to keep")
                self._by(stage, stage.by, "`by`")
                return ops.TopK(stage.count, stage.by, stage=number, span=stage.span)
            case ast.Best():
                self._needs_rows(stage)
                self._by(stage, stage.by, "`by`")
                one = ast.Literal(1, span=word_span(stage))
                return ops.TopK(one, stage.by, stage=number, span=stage.span)
            case ast.Vote():
                return self._vote(stage, number)
            case ast.Repeat():
                return self._repeat(stage, number)
            case ast.Return():
                self._needs_context(stage)
                self.returns = reader(self.scope, stage, "first row").type(stage.value)
                return ops.Return(stage.value, stage=number, span=stage.span)

    def _set_context(self, stage: ast.Prompt | ast.Chat, number: int) -> ops.Operator | None:
        word = stage_word(stage)
        if isinstance(stage, ast.Prompt):
            reader(self.scope, stage, "parameters").type(stage.text)
        else:
            for turn in stage.turns:
                typer = reader(self.scope, stage, "parameters", f"`{turn.role}`")
                typer.expect(turn.content, "text", "a text")
        if isinstance(self._context, (ast.Prompt, ast.Chat)):
            message = f"a second context: appending to one with `{word}` is not part of the language as it is"
            first = (Label(word_span(self._context), "the context starts here"),)
            self.scope.error("QP216", message, word_span(stage), "the context has started", secondary=first)
            return None
        self._context = stage
        self.scope.start_context()
        if isinstance(stage, ast.Prompt):
            return ops.SetContext(prompt=stage.text, stage=number, span=stage.span)
        return ops.SetContext(stage.turns, stage=number, span=stage.span) if stage.turns else None

    def _generate(self, stage: ast.Generate, number: int) -> ops.Operator:
        self._model(stage.model)
        given: dict[str, ast.Expr | None] = {}
        for option, type_ in _OPTIONS.items():
            given[option] = value = getattr(stage, option)
            if value is not None:
                reader(self.scope, stage, "parameters", f"`{option}`").expect(value, type_, _IN_WORDS[type_])
                check_range(option, value, self.scope)
        if stage.stop is not None:
            reader(self.scope, stage, "parameters", "`stop`").expect(stage.stop, "text", "a text")
            stop, declared = default_of(stage.stop, self.scope.params)
            if isinstance(stop, ast.Template) and not "".join(map(str, stop.parts)):
                self.scope.error("QP303", "a stop string cannot be empty", declared or stage.stop.span)
        self._warn_greedy(stage)
        self._generated = True
        model, span = stage.model.name, word_span(stage)
        n = given.pop("n") or ast.Literal(1, span=span)
        temperature = given.pop("temperature") or ast.Literal(1.0, span=span)
        return ops.Generate(model, n, temperature, stop=stage.stop, **given, stage=number, span=stage.span)

    def _warn_greedy(self, stage: ast.Generate) -> None:
        n, temperature = default_of(stage.n, self.scope.params)[0], default_of(stage.temperature, {})[0]
        if not (isinstance(n, ast.Literal) and isinstance(temperature, ast.Literal)) or temperature.value != 0:
            return
        if isinstance(n.value, int) and n.value > 1 and stage.n is not None and stage.temperature is not None:
            message = f"{n.value} samples at temperature 0 are {n.value} times the same text"
            where = (Label(stage.temperature.span, "always the likeliest token"),)
            help = "leave `n` out, or raise the temperature"
            self.scope.report(Diagnostic("QP302", message, stage.n.span, "", where, help=help, severity="warning"))

    def _score(self, stage: ast.Score, number: int) -> ops.Operator:
        self._needs_rows(stage)
        self._model(stage.verifier)
        into = stage.into.id if stage.into else "score"
        self._make(stage, stage.into or ast.Name("score", span=word_span(stage)), "float")
        self.score_column = into
        return ops.Score(stage.verifier.name, stage.reduce, into, stage=number, span=stage.span)

    def _vote(self, stage: ast.Vote, number: int) -> ops.Operator:
        self._needs_rows(stage)
        column = stage.column
        if column.id in self.scope.params and column.id not in self.scope.columns:
            self.scope.error("QP203", f"`vote` takes a column, but `{column.id}` is a parameter", column.span)
        elif self._context is not None:
            self.scope.column(column, stage)
        if stage.weight is not None:
            self._by(stage, stage.weight, "`weight`")
        return ops.Vote(column.id, stage.weight, stage=number, span=stage.span)

    def _repeat(self, stage: ast.Repeat, number: int) -> ops.Operator:
        self._needs_context(stage)
        self._count(stage, stage.limit, "the number of rounds")
        before = dict(self.scope.columns)
        body = Chain(ops.Start(stage=number, span=stage.span), self.scope.types())
        for inner in stage.body:
            if isinstance(inner, ast.Return):
                self.scope.error("QP217", "`return` cannot stand inside `repeat`", word_span(inner))
            self._add(body, inner)
        for name, column in before.items():
            now = self.scope.columns[name]
            if now.type != column.type and now.maker is not None:
                message = f"each round must leave `{name}` the {column.type} that it found, not a {now.type}"
                self.scope.error("QP209", message, (made_name(now.maker) or now.maker).span)
        if stage.until is not None:
            typer = reader(self.scope, stage, "aggregates", "`until`", stage.span.end)
            typer.expect(stage.until, "bool", "a bool")
        return ops.Repeat(stage.limit, stage.until, body.done(), stage=number, span=stage.span)

    def _count(self, stage: ast.Stage, count: ast.Expr, what: str) -> None:
        reader(self.scope, stage, "parameters", what).expect(count, "int", "an int")
        check_range(stage_word(stage), count, self.scope)

    def _by(self, stage: ast.Stage, expr: ast.Expr, place: str) -> None:
        if self._context is None:
            return
        reader(self.scope, stage, "row", place).expect(expr, _SORTABLE, "a number or a bool")

    def _make(self, stage: ast.Stage, name: ast.Name, type_: Type) -> None:
        if name.id in self.scope.params:
            declared = (Label(self.scope.params[name.id].name_span, "declared here"),)
            message = f"`{name.id}` is a parameter and cannot be a column too"
            self.scope.error("QP208", message, name.span, secondary=declared)
        elif self.scope.columns:
            self.scope.columns.pop(name.id, None)
            self.scope.columns[name.id] = Column(type_, stage)

    def _needs_context(self, stage: ast.Stage) -> bool:
        if self._context is None and not self.scope.gap_before(stage.span.start, "chat", "prompt"):
            message = f"`{stage_word(stage)}` needs a context, but no stage before it starts one"
            help = 'write `chat user=…` or `prompt "…"` before it'
            self.scope.error("QP215", message, word_span(stage), "nothing to go on from", help=help)
        if self._context is None:
            self._context = stage
            self.scope.start_context()
            return False
        return True

    def _needs_rows(self, stage: ast.Stage) -> None:
        gap = self.scope.gap_before(stage.span.start, "generate", "repeat")
        if not self._needs_context(stage) or self._generated or gap:
            return
        message = f"`{stage_word(stage)}` comes before anything is generated"
        self.scope.error("QP218", message, word_span(stage), "no `generate` before this stage")
        self._generated = True

    def _model(self, ref: ast.ModelRef) -> None:
        if ref.quoted or ref.name in self.declared:
            self.models.setdefault(ref.name, ref.name if ref.quoted else self.declared[ref.name])
            return
        if not self.models_known:
            return
        near = closest(ref.name, self.declared)
        notes = (f"models: {', '.join(self.declared)}",) if self.declared else ("the file declares no model",)
        more: dict[str, Any] = {}
        if near:
            more = {"help": f"did you mean `{near}`?", "edit": Edit(ref.span, near)}
        elif not self.declared:
            more = {"help": f'declare it above the program: `model {ref.name} = "…"`'}
        self.scope.error("QP201", f"unknown model `{ref.name}`", ref.span, "not declared", notes=notes, **more)
