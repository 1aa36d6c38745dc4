"""Declarations and columns that nothing reads. Told only of files without errors, which may be the cause."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import Diagnostic, Edit, Label
from qpdsl.grammar.source import Span
from qpdsl.grammar.words import TYPES
from qpdsl.planner.names.modules import Module
from qpdsl.planner.names.scope import word_span
from qpdsl.planner.names.substitute import walk
from qpdsl.planner.plan.logical import LogicalProgram

Names = frozenset[str]


def unused_declarations(file: ast.File) -> Iterator[Diagnostic]:
    """Models and schemas that no program of the file needs. What `-e` brings along is declared nowhere."""
    references = [node for node in walk(file.programs) if isinstance(node, ast.ModelRef)]
    models = {ref.name for ref in references if not ref.quoted}
    for model in file.models:
        if model.name not in models and model.name_span != model.span:
            quoted = next((ref.span for ref in references if ref.name == model.name), None)
            yield _unused_model(model, quoted)
    types = {node.name for node in walk((file.programs, file.schemas)) if isinstance(node, ast.TypeRef)}
    targets = {node.name for node in walk(file.programs) if isinstance(node, ast.SchemaTarget)}
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
    """Parameters and columns that a program does not read; a row's score is reported, and so is read.

    `callers` are the names that programs read which call this one, and so go on with its rows.
    """
    names = {node.id for node in walk(syntax.body) if isinstance(node, ast.Name)}
    for param in syntax.params:
        if param.name not in names:
            yield _warning("QP234", f"parameter `{param.name}` is not used", param.name_span)
    last = syntax.body[-1] if syntax.body else None
    value = last.column.id if isinstance(last, ast.Vote) else "text"
    score = frozenset({lowered.score_column}) if lowered.score_column else frozenset()
    plain = syntax.returns is None or syntax.returns.name in TYPES
    readers = _Readers()
    readers.before(syntax.body, callers | score | {value})
    for made in readers.unread:
        message = f"column `{made.name}` is never read"
        label = "a later stage puts another in its place" if made.lost else "only `--rows` would show it"
        gives = made.is_answer and not made.lost and plain and not isinstance(last, ast.Return | ast.Vote)
        help = f"`return {made.name}` at the end gives it back" if gives else None
        yield Diagnostic("QP232", message, made.span, label, help=help, severity="warning")


def read_by_callers(modules: tuple[Module, ...]) -> Mapping[int, Names]:
    """For each program that others call, by its identity: the names that those read, and those that call them."""
    reads: dict[int, Names] = {}
    waiting = [(module, program) for module in modules for program in module.file.programs]
    while waiting:
        module, program = waiting.pop()
        nodes = list(walk(program.body))
        own = reads.get(id(program), frozenset()) | {node.id for node in nodes if isinstance(node, ast.Name)}
        for call in nodes:
            called = module.programs.get(call.program) if isinstance(call, ast.Call) else None
            if called is not None and not own <= reads.get(id(called[1]), frozenset()):
                reads[id(called[1])] = reads.get(id(called[1]), frozenset()) | own
                waiting.append(called)
    return reads


def _warning(code: str, message: str, span: Span) -> Diagnostic:
    return Diagnostic(code, message, span, severity="warning")


@dataclass(frozen=True, slots=True)
class _Unread:
    """A column that nothing reads; `lost` says that a later stage makes one of the same name."""

    name: str
    span: Span
    is_answer: bool
    lost: bool


@dataclass(slots=True)
class _Readers:
    """Walks stages from the last to the first, with the names that those after each will read.

    `made` are the columns made so far, `first_reads` what each body of a `repeat` reads that it has not made. A column
    that `generate … into` makes counts as read: it names a text that stays in the context, at no cost.
    """

    unread: list[_Unread] = field(default_factory=list)
    made: Names = frozenset()
    first_reads: dict[int, Names] = field(default_factory=dict)

    def before(self, stages: tuple[ast.Stage, ...], after: Names) -> Names:
        """The names that are read from before these stages on, where those in `after` are after them."""
        for stage in reversed(stages):
            after = self._stage(stage, after)
        return after

    def _stage(self, stage: ast.Stage, after: Names) -> Names:
        match stage:
            case ast.Repeat(body=body, until=until):
                return self._rounds(body, after | _names(until))
            case ast.Peek(body=body):
                return self.before(body, after)
            case ast.Branch(arms=arms):
                return self._arms(arms, after)
            case ast.Extract(column=column):
                return self._made(column.id, column.span, after, is_answer=True)
            case ast.Score(into=into):
                return self._made(into.id if into else "score", into.span if into else word_span(stage), after)
            case ast.Generate(into=into):
                return after - ({into.id} if into else set())
            case ast.Call(into=into, arguments=arguments):
                given = frozenset().union(*(_names(argument.value) for argument in arguments))
                return (self._made(into.id, into.span, after, is_answer=True) if into else after) | given
        return after | _names(stage)

    def _rounds(self, body: tuple[ast.Stage, ...], after: Names) -> Names:
        """A round may be followed by another one, or be none: what it reads at its start is read at its end."""
        if id(body) not in self.first_reads:
            alone = _Readers(first_reads=self.first_reads)
            self.first_reads[id(body)] = alone.before(body, frozenset())
        known = after | self.first_reads[id(body)]
        return known | self.before(body, known)

    def _arms(self, arms: tuple[tuple[ast.Stage, ...], ...], after: Names) -> Names:
        later, made, read = self.made, self.made, after if not arms else frozenset()
        for arm in arms:
            self.made = later
            read = read | self.before(arm, after)
            made = made | self.made
        self.made = made
        return read

    def _made(self, name: str, span: Span, after: Names, *, is_answer: bool = False) -> Names:
        if name not in after:
            self.unread.append(_Unread(name, span, is_answer, name in self.made))
        self.made |= {name}
        return after - {name}


def _names(node: ast.Node | None) -> Names:
    return frozenset(inner.id for inner in walk(node) if isinstance(inner, ast.Name))
