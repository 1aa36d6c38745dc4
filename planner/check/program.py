"""One program checked and lowered: its parameters, its stages, what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from qpdsl.grammar import ast
from qpdsl.grammar.ast.walk import makers
from qpdsl.grammar.diagnostic import Diagnostic, Edit, Label, in_order
from qpdsl.grammar.words import COLUMNS, TYPES, Type
from qpdsl.planner.check.stages import add
from qpdsl.planner.names.modules import Environment, Module, no_duplicates
from qpdsl.planner.names.scope import Scope, param_type, word_span
from qpdsl.planner.names.types import fits
from qpdsl.planner.names.unknown import is_alias, unknown_type
from qpdsl.planner.names.walk import Result, Room, Walk, result
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.logical import Chain, LogicalProgram, Parameter
from qpdsl.planner.plan.options import constant

Report = Callable[[Diagnostic], None]
# How deep programs that were not checked yet may lead to one another while one is.
_DEEPEST = 64


@dataclass(frozen=True, slots=True)
class Checked:
    """A program as lowered; the plan is of use only where `found` holds no error."""

    program: LogicalProgram
    found: tuple[Diagnostic, ...]

    @property
    def failed(self) -> bool:
        return any(diagnostic.severity == "error" for diagnostic in self.found)


@dataclass(slots=True)
class Checker:
    """Checks the programs of all files, each once, a called one before its caller is done."""

    environment: Environment
    room: Room = field(default_factory=Room)
    _done: dict[tuple[Module, int], Checked | None] = field(default_factory=dict)
    _open: int = 0

    def check(self, module: Module, program: ast.Program) -> Checked | None:
        """None where the program is being checked right now: it calls itself."""
        key = module, id(program)
        if key not in self._done:
            self._done[key] = None
            self._open += 1
            self._done[key] = _Lowering(self, module, program).run()
            self._open -= 1
        return self._done[key]

    def failed(self, module: Module, program: ast.Program) -> bool:
        """Whether a called program has an error of its own, as each in a cycle of calls has."""
        if self._open > _DEEPEST:
            return False
        checked = self.check(module, program)
        return checked is None or checked.failed


class _Lowering:
    def __init__(self, checker: Checker, module: Module, program: ast.Program) -> None:
        self.checker = checker
        self.module = module
        self.syntax = program
        self.found: list[Diagnostic] = []
        self.faulty = {error.span for error in module.file.errors}
        body = program.span
        self.gaps = tuple(gap for gap in module.file.gaps if body.start <= gap.start < body.end)

    def run(self) -> Checked:
        program, file = self.syntax, self.module.file
        params = self._params()
        later = dict(reversed(list(makers(program.body))))
        gaps = tuple((gap.start, file.source.text[gap.start : gap.end]) for gap in self.gaps)
        scope = Scope(params, self._report, gaps, later, models=self.module.models)
        checker = self.checker
        walk = Walk(scope, self.module, checker.environment, checker.failed, checker.room, program.draft)
        walk.calls = ((self.module, program),)
        self._check_clauses()
        plan = Chain(ops.Start(stage=-1, span=program.span), {})
        for index, stage in enumerate(program.body):
            if isinstance(stage, ast.Return):
                self._check_last(index)
                break
            add(walk, plan, stage)
        given = result(walk, program.body, program.span)
        returns, parse = self._returns(given, known=not scope.gaps)
        plan.add(ops.Return(given.value, parse, stage=walk.next(), span=given.span), scope.types())
        self._check_draft(walk)
        lowered = LogicalProgram(
            name=program.name,
            source_name=file.source.name,
            params=tuple(Parameter(p.name, param_type(p), constant(p.default)) for p in program.params),
            models=walk.models,
            plan=plan.done(),
            returns=returns,
            score_column=walk.score_column,
            within=program.within,
            prefer=program.prefer.latency if program.prefer else None,
            syntax=program,
            warnings=in_order(self.found),
        )
        for diagnostic in self.found:
            self.module.report(diagnostic)
        return Checked(lowered, tuple(self.found))

    def _report(self, diagnostic: Diagnostic) -> None:
        """Takes a finding, but for one about what the parser has found faulty already."""
        if diagnostic.span not in self.faulty:
            self.found.append(diagnostic)

    # Head

    def _params(self) -> dict[str, ast.Param]:
        params: dict[str, ast.Param] = {}
        for param in self.syntax.params:
            params.setdefault(param.name, param)
            self._check_param(param)
        no_duplicates("parameter", self.syntax.params, self._report)
        return params

    def _check_param(self, param: ast.Param) -> None:
        type_ = param.type
        if type_.name in self.module.schemas:
            message = f"a parameter is a plain value, but `{type_.name}` is a schema"
            notes = (f"types: {', '.join(TYPES)}",)
            self._report(Diagnostic("QP206", message, type_.span, notes=notes, help="pass it as JSON in a text"))
        elif type_.name not in TYPES:
            self._report(unknown_type(type_, TYPES))
        if param.name in COLUMNS:
            message = f"`{param.name}` is a column of every row and cannot be a parameter too"
            self._report(Diagnostic("QP208", message, param.name_span, help="rename the parameter"))
        if param.default is None:
            return
        value = constant(param.default)
        if value is None:
            message = "a default is a number, a string, `true` or `false`"
            self._report(Diagnostic("QP213", message, param.default.span, "this must be worked out"))
            return
        actual: Type = "text"
        if isinstance(value, ast.Literal):
            actual = "none" if value.value is None else type(value.value).__name__  # type: ignore[assignment]
        wanted = param_type(param)
        if wanted != "unknown" and not fits(actual, wanted):
            message = f"`{param.name}` is declared {wanted}, but its default is {actual}"
            why = (Label(param.type.span, f"declared {wanted}"),)
            self._report(Diagnostic("QP213", message, param.default.span, f"this is {actual}", why))

    def _check_clauses(self) -> None:
        within, prefer = self.syntax.within, self.syntax.prefer
        if within is not None and within.bound is not None:
            if within.level == "epsilon" and not within.bound > 0:
                message = "the bound of `epsilon` is over 0; `within exact` allows no difference"
                self._report(Diagnostic("QP301", message, within.span))
            elif within.level == "loss" and not 0 <= within.bound <= 1:
                self._report(Diagnostic("QP301", "the bound of `loss` is between 0 and 1", within.span))
        if prefer is not None and not 0 <= prefer.latency <= 1:
            self._report(Diagnostic("QP301", "`latency` is between 0 and 1", prefer.span))

    def _check_draft(self, walk: Walk) -> None:
        """The program's draft model: there, and of use to some `generate`."""
        draft = self.syntax.draft
        if draft is None:
            return
        known = walk.module.models
        if not draft.quoted and draft.name not in known:
            walk.model(draft)
        elif all(model == draft.name for model in _generating(self.syntax.body)) and not self.gaps:
            message = f"`{draft.name}` drafts for itself, which saves nothing"
            walk.warn(Diagnostic("QP402", message, draft.span, "name a smaller model"))

    # Result

    def _check_last(self, index: int) -> None:
        body = self.syntax.body
        if index + 1 < len(body):
            first = (Label(body[index].span, "the program ends here"),)
            what = word_span(body[index + 1])
            self._report(Diagnostic("QP217", "nothing runs after `return`", what, "never reached", first))

    def _returns(self, given: Result, *, known: bool) -> tuple[str, bool]:
        """The type of the program's result, and whether it is the record in a JSON text."""
        declared, schemas = self.syntax.returns, self.module.schemas
        if declared is None:
            return given.type, False
        if declared.name in schemas:
            schema = schemas.get(declared.name)
            if schema is None or given.schema == schema:
                return declared.name, True
            if known and given.type != "unknown":
                self._misfit(declared, given, "a text that is not held to it")
            return declared.name, True
        if declared.name not in TYPES:
            if "schema" not in self.module.missing or is_alias(declared.name):
                self._report(unknown_type(declared, (*TYPES, *schemas.names())))
        elif given.type != "none" and not fits(given.type, declared.name) and known:
            self._misfit(declared, given, given.type)
        return declared.name, False

    def _misfit(self, declared: ast.TypeRef, given: Result, shown: str) -> None:
        name, help, edit = self.syntax.name, None, None
        if declared.name in self.module.schemas:
            what = given.schema.name if given.schema else given.type
            shown = f"`{what}`" if given.schema else shown if what == "text" else what
            help = f"hold what it generates last to the schema: `generate … as {declared.name}`"
        else:
            help, edit = f"declare it `-> {given.type}`", Edit(declared.span, given.type)
        message = f"program `{name}` is declared to give {declared.name}, but it gives {shown}"
        why = (Label(given.span, f"this gives {shown}"),)
        self._report(
            Diagnostic("QP214", message, declared.span, f"declared {declared.name}", why, help=help, edit=edit)
        )


def _generating(stages: tuple[ast.Stage, ...]) -> Iterator[str]:
    """The models that stages generate with, where a draft would be of use."""
    for stage in stages:
        match stage:
            case ast.Generate(via=None, draft=None):
                yield stage.model.name
            case ast.Repeat(body=body) | ast.Peek(body=body):
                yield from _generating(body)
            case ast.Branch(arms=arms):
                for arm in arms:
                    yield from _generating(arm)
