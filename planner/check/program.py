"""One program checked and lowered: its head, its stages, and its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from qpdsl.grammar import ast
from qpdsl.grammar.ast.walk import column_makers
from qpdsl.grammar.diagnostic import Diagnostic, Edit, Label, in_order
from qpdsl.grammar.words import COLUMNS, TYPES, Type
from qpdsl.planner.check.binder import Binder, InlineBudget, ReturnValue, return_value
from qpdsl.planner.check.draft_clause import check_program_draft
from qpdsl.planner.check.stages import add_stage
from qpdsl.planner.names.modules import Environment, Module, no_duplicates
from qpdsl.planner.names.scope import Scope, param_type, word_span
from qpdsl.planner.names.types import fits
from qpdsl.planner.names.unknown import is_alias, unknown_type
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.logical import LogicalProgram, Parameter, PlanBuilder
from qpdsl.planner.plan.options import constant

Report = Callable[[Diagnostic], None]
# How deep calls of programs that are not checked yet may nest while one is checked.
_MAX_DEPTH = 64


@dataclass(frozen=True, slots=True)
class CheckedProgram:
    """A lowered program. The plan is usable only where `diagnostics` holds no error."""

    program: LogicalProgram
    diagnostics: tuple[Diagnostic, ...]

    @property
    def failed(self) -> bool:
        return any(diagnostic.severity == "error" for diagnostic in self.diagnostics)


@dataclass(slots=True)
class Checker:
    """Checks the programs of all files, each once; a called program is finished before its caller."""

    environment: Environment
    budget: InlineBudget = field(default_factory=InlineBudget)
    _checked: dict[tuple[Module, int], CheckedProgram | None] = field(default_factory=dict)
    _depth: int = 0

    def check(self, module: Module, program: ast.Program) -> CheckedProgram | None:
        """None where the program is being checked already: it calls itself."""
        key = module, id(program)
        if key not in self._checked:
            self._checked[key] = None
            self._depth += 1
            self._checked[key] = _Lowering(self, module, program).run()
            self._depth -= 1
        return self._checked[key]

    def failed(self, module: Module, program: ast.Program) -> bool:
        """Whether a called program has an error of its own. Each program in a cycle of calls has one."""
        if self._depth > _MAX_DEPTH:
            return False
        checked = self.check(module, program)
        return checked is None or checked.failed


class _Lowering:
    def __init__(self, checker: Checker, module: Module, program: ast.Program) -> None:
        self.checker = checker
        self.module = module
        self.syntax = program
        self.diagnostics: list[Diagnostic] = []
        self.syntax_errors = {error.span for error in module.file.errors}
        body = program.span
        self.gaps = tuple(gap for gap in module.file.gaps if body.start <= gap.start < body.end)

    def run(self) -> CheckedProgram:
        program, file = self.syntax, self.module.file
        binder = self._binder()
        self._check_clauses()
        plan = PlanBuilder(ops.Start(stage=-1, span=program.span), {})
        for index, stage in enumerate(program.body):
            if isinstance(stage, ast.Return):
                self._check_last(index)
                break
            binder.add(plan, stage)
        result = return_value(binder, program.body, program.span)
        returns, parse = self._returns(result, known=not binder.scope.gaps)
        op = ops.Return(result.value, parse, stage=binder.next_stage(), span=result.span)
        plan.add(op, binder.scope.types())
        check_program_draft(binder, program)
        lowered = LogicalProgram(
            name=program.name,
            source_name=file.source.name,
            params=tuple(Parameter(p.name, param_type(p), constant(p.default)) for p in program.params),
            models=binder.models,
            plan=plan.done(),
            returns=returns,
            score_column=binder.score_column,
            within=program.within,
            prefer=program.prefer.latency if program.prefer else None,
            syntax=program,
            warnings=in_order(self.diagnostics),
        )
        for diagnostic in self.diagnostics:
            self.module.report(diagnostic)
        return CheckedProgram(lowered, tuple(self.diagnostics))

    def _binder(self) -> Binder:
        text = self.module.file.source.text
        gaps = tuple((gap.start, text[gap.start : gap.end]) for gap in self.gaps)
        first_makers = dict(reversed(list(column_makers(self.syntax.body))))
        scope = Scope(self._params(), self._report, gaps, first_makers, models=self.module.models)
        calls = ((self.module, self.syntax),)
        checker = self.checker
        return Binder(scope, calls, checker.environment, checker.failed, checker.budget, add_stage)

    def _report(self, diagnostic: Diagnostic) -> None:
        """Keeps a diagnostic, unless the parser has reported an error with the same span."""
        if diagnostic.span not in self.syntax_errors:
            self.diagnostics.append(diagnostic)

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

    # Result

    def _check_last(self, index: int) -> None:
        body = self.syntax.body
        if index + 1 < len(body):
            first = (Label(body[index].span, "the program ends here"),)
            what = word_span(body[index + 1])
            self._report(Diagnostic("QP217", "nothing runs after `return`", what, "never reached", first))

    def _returns(self, result: ReturnValue, *, known: bool) -> tuple[str, bool]:
        """The type of the program's result, and whether it is the record in a JSON text."""
        declared, schemas = self.syntax.returns, self.module.schemas
        if declared is None:
            return result.type, False
        if declared.name in schemas:
            schema = schemas.get(declared.name)
            if schema is None or result.schema == schema:
                return declared.name, True
            if known and result.type != "unknown":
                self._misfit(declared, result, "a text that is not held to it")
            return declared.name, True
        if declared.name not in TYPES:
            if "schema" not in self.module.missing or is_alias(declared.name):
                self._report(unknown_type(declared, (*TYPES, *schemas.names())))
        elif result.type != "none" and not fits(result.type, declared.name) and known:
            self._misfit(declared, result, result.type)
        return declared.name, False

    def _misfit(self, declared: ast.TypeRef, result: ReturnValue, shown: str) -> None:
        name, help, edit = self.syntax.name, None, None
        if declared.name in self.module.schemas:
            what = result.schema.name if result.schema else result.type
            shown = f"`{what}`" if result.schema else shown if what == "text" else what
            help = f"hold what it generates last to the schema: `generate … as {declared.name}`"
        else:
            help, edit = f"declare it `-> {result.type}`", Edit(declared.span, result.type)
        message = f"program `{name}` is declared to give {declared.name}, but it gives {shown}"
        why = (Label(result.span, f"this gives {shown}"),)
        self._report(
            Diagnostic("QP214", message, declared.span, f"declared {declared.name}", why, help=help, edit=edit)
        )
