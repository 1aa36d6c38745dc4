"""Warnings about unused declarations, parameters and columns. Only files without errors get them.

In a file with errors a reader may be missing because of an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from qpdsl.grammar import ast
from qpdsl.grammar.ast.walk import column_name, made_column, walk
from qpdsl.grammar.diagnostic import Diagnostic, Edit, Label
from qpdsl.grammar.source import Span
from qpdsl.grammar.words import TYPES
from qpdsl.planner.names.modules import Module
from qpdsl.planner.names.scope import word_span
from qpdsl.planner.plan.logical import LogicalPlan, LogicalProgram, operators
from qpdsl.planner.plan.reads import compared_columns

Names = frozenset[str]


def unused_declarations(file: ast.File) -> Iterator[Diagnostic]:
    """Models and schemas that no program of the file uses. Those that `-e` adds are not declared in a text."""
    references = [node for node in walk(file.programs) if isinstance(node, ast.ModelRef)]
    models = {ref.name for ref in references if not ref.quoted}
    # A model can be given for a parameter of a called program, and be its default.
    given = [node for node in walk(file.programs) if isinstance(node, ast.Argument | ast.Param)]
    values = [node.value if isinstance(node, ast.Argument) else node.default for node in given]
    models |= {name.id for value in values for name in walk(value) if isinstance(name, ast.Name)}
    for model in file.models:
        if model.name not in models and model.name_span != model.span:
            quoted = next((ref.span for ref in references if ref.name == model.name), None)
            yield _unused_model(model, quoted)
    types = {node.name for node in walk((file.programs, file.schemas)) if isinstance(node, ast.TypeRef)}
    targets = {node.name for node in walk(file.programs) if isinstance(node, ast.SchemaTarget | ast.ToolRef)}
    targets |= {node.schema.id for node in walk(file.programs) if isinstance(node, ast.ValidJson) and node.schema}
    for schema in file.schemas:
        if schema.name not in types | targets:
            yield _warning("QP235", f"schema `{schema.name}` is not used", schema.name_span)


def _unused_model(model: ast.Model, quoted: Span | None) -> Diagnostic:
    message = f"model `{model.name}` is not used"
    if quoted is None:
        return _warning("QP233", message, model.name_span)
    why = (Label(quoted, "this is the id of another model"),)
    help = "a declared model is named without quotes"
    edit = Edit(quoted, model.name)
    return Diagnostic("QP233", message, model.name_span, "", why, help=help, edit=edit, severity="warning")


def unused_in(lowered: LogicalProgram, syntax: ast.Program, callers: Names) -> Iterator[Diagnostic]:
    """Parameters and columns that a program does not read. The score column is reported with each row, so it is read.

    `callers` are the names read by programs that call this one without `into`, since they continue with its rows.
    """
    names = {node.id for node in walk(syntax.body) if isinstance(node, ast.Name)}
    names |= {node.name for node in walk((syntax.body, syntax.draft)) if isinstance(node, ast.ModelRef)}
    plans = (lowered.plan, *(way.program.plan for way in lowered.ways))
    asks = {name: own for plan in plans for name, own in _asks(plan).items()}
    names |= frozenset().union(*asks.values())
    for param in syntax.params:
        if param.name not in names:
            yield _warning("QP234", f"parameter `{param.name}` is not used", param.name_span)
    lasts = _last_stages(syntax.body)
    values = {last.column.id if isinstance(last, ast.Vote) else "text" for last in lasts}
    score = frozenset({lowered.score_column}) if lowered.score_column else frozenset()
    plain = syntax.returns is None or (isinstance(syntax.returns, ast.TypeRef) and syntax.returns.name in TYPES)
    liveness = _Liveness(asks=asks)
    liveness.before(syntax.body, callers | score | values)
    for column in liveness.unread:
        message = f"column `{column.name}` is never read"
        label = "a later stage puts another in its place" if column.replaced else "only `--rows` would show it"
        ends = isinstance(lasts[0], ast.Return | ast.Vote)
        returnable = column.is_answer and not column.replaced and plain and not ends
        help = f"`return {column.name}` at the end gives it back" if returnable else None
        yield Diagnostic("QP232", message, column.span, label, help=help, severity="warning")


def _last_stages(stages: tuple[ast.Stage, ...]) -> list[ast.Stage | None]:
    """The stage that a program ends with, or those with which the arms of its `strategy` do."""
    last = stages[-1] if stages else None
    if not isinstance(last, ast.Strategy):
        return [last]
    return [end for arm in last.arms for end in _last_stages(arm)] or [None]


def _asks(plan: LogicalPlan) -> dict[str, Names]:
    """The names that each Python function of a plan asks for, of columns and of parameters."""
    asks: dict[str, Names] = {}
    for op in operators(plan):
        if isinstance(op, ast.PythonScore | ast.PythonExtract):
            asks[op.function] = asks.get(op.function, frozenset()) | {*op.asks, *(name for name, _ in op.arguments)}
    return asks


def read_by_callers(modules: tuple[Module, ...]) -> Mapping[int, Names]:
    """For each program called without `into`, by its `id`: the names read by its callers, and by those of these."""
    reads: dict[int, Names] = {}
    queue = [(module, program) for module in modules for program in module.file.programs]
    while queue:
        module, program = queue.pop()
        nodes = list(walk(program.body))
        own = reads.get(id(program), frozenset()) | {node.id for node in nodes if isinstance(node, ast.Name)}
        for call in nodes:
            called = module.programs.get(call.program) if isinstance(call, ast.Call) and call.into is None else None
            if called is not None and not own <= reads.get(id(called[1]), frozenset()):
                reads[id(called[1])] = reads.get(id(called[1]), frozenset()) | own
                queue.append(called)
    return reads


def _warning(code: str, message: str, span: Span) -> Diagnostic:
    return Diagnostic(code, message, span, severity="warning")


@dataclass(frozen=True, slots=True)
class _UnreadColumn:
    """A column that nothing reads. `replaced` says that a later stage makes one of the same name."""

    name: str
    span: Span
    is_answer: bool
    replaced: bool


@dataclass(slots=True)
class _Liveness:
    """Live-variable analysis of columns: goes through stages from last to first, with the names read after each.

    `made` are the columns made by the stages seen so far. `live_at_start` holds, by the `id` of a `repeat`'s body, the
    names that the body reads before it makes them. A column that `generate … into` makes counts as read: it names a
    text that stays in the context, at no cost.
    """

    unread: list[_UnreadColumn] = field(default_factory=list)
    made: Names = frozenset()
    live_at_start: dict[int, Names] = field(default_factory=dict)
    asks: Mapping[str, Names] = field(default_factory=dict)

    def before(self, stages: tuple[ast.Stage, ...], after: Names) -> Names:
        """The names that are read from before these stages on, where `after` are those read after them."""
        for stage in reversed(stages):
            after = self._stage(stage, after)
        return after

    def _stage(self, stage: ast.Stage, after: Names) -> Names:
        match stage:
            case ast.Repeat(body=body, until=until):
                return self._rounds(body, after | _names(until))
            case ast.Search(body=body, by=by):
                options = (stage.simulations, stage.c, stage.per_round)
                return self._rounds(body, after | _names(by)).union(*map(_names, options))
            case ast.Peek(body=body) | ast.Ask(body=body):
                return self.before(body, after)
            case ast.Branch(arms=arms) | ast.Strategy(arms=arms):
                return self._arms(arms, after)
            case ast.If(condition=condition, then=then, otherwise=otherwise):
                # Without `else` the other rows go on as they are, which an empty block does.
                return self._arms((then, otherwise), after) | _names(condition)
            case ast.Each(column=column, source=source, body=body):
                return (self.before(body, after) - {column.id}) | _names(source)
            case ast.Tournament(question=question):
                return after | frozenset(compared_columns(question)) | _read(stage)
        name, read = column_name(stage), self._asked(stage) | _read(stage)
        if isinstance(stage, ast.Generate):
            return (after - {name.id} if name else after) | read
        if made_column(stage) is None:
            return after | read
        span = name.span if name else word_span(stage)
        return self._make(stage, span, after, is_answer=not isinstance(stage, ast.Score)) | read

    def _asked(self, stage: ast.Stage) -> Names:
        """The columns that a Python function asks for by name."""
        name = stage.verifier.name if isinstance(stage, ast.StepScore) else ""
        if isinstance(stage, ast.Extract) and isinstance(stage.pattern, ast.Name):
            name = stage.pattern.id
        return self.asks.get(name, frozenset())

    def _rounds(self, body: tuple[ast.Stage, ...], after: Names) -> Names:
        """Another round may follow, or none may run: the names read at a round's start are read at its end too."""
        if id(body) not in self.live_at_start:
            body_alone = _Liveness(live_at_start=self.live_at_start, asks=self.asks)
            self.live_at_start[id(body)] = body_alone.before(body, frozenset())
        live = after | self.live_at_start[id(body)]
        return live | self.before(body, live)

    def _arms(self, arms: tuple[tuple[ast.Stage, ...], ...], after: Names) -> Names:
        later, made, read = self.made, self.made, after if not arms else frozenset()
        for arm in arms:
            self.made = later
            read = read | self.before(arm, after)
            made = made | self.made
        self.made = made
        return read

    def _make(self, stage: ast.Stage, span: Span, after: Names, *, is_answer: bool = False) -> Names:
        name = made_column(stage)
        assert name is not None
        if name not in after:
            self.unread.append(_UnreadColumn(name, span, is_answer, name in self.made))
        self.made |= {name}
        return after - {name}


def _names(node: ast.Node | None) -> Names:
    return frozenset(name.id for name in walk(node) if isinstance(name, ast.Name))


def _read(stage: ast.Stage) -> Names:
    """The names that a stage reads, in expressions and as columns."""
    columns = [getattr(stage, name) for name, part in ast.parts(type(stage)) if part.kind == "column"]
    return frozenset().union(*map(_names, (value for value, _, _ in ast.values(stage))), *map(_names, columns))
