"""A file lowered to logical plans, and one program of it checked: its head, its stages, and its result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import PurePath

from qpdsl.grammar import ast
from qpdsl.grammar.ast.walk import column_makers, walk, walk_stages
from qpdsl.grammar.diagnostic import Diagnostic, Edit, Label, QpError, in_order
from qpdsl.grammar.format.unparse import format_type
from qpdsl.grammar.source import Span
from qpdsl.grammar.suggest import closest
from qpdsl.grammar.words import TYPES
from qpdsl.planner.check.binder import Binder, InlineBudget, ReturnValue, bind_default_models, return_value
from qpdsl.planner.check.blocks import add_stage
from qpdsl.planner.check.generate import check_ahead, check_program_draft
from qpdsl.planner.check.score import sought_by
from qpdsl.planner.check.unused import read_by_callers, unused_declarations, unused_in
from qpdsl.planner.names.json_schema import value_type
from qpdsl.planner.names.modules import Environment, Module, Modules, out_of_its_depth
from qpdsl.planner.names.parameters import lists_models, parameters
from qpdsl.planner.names.scope import Scope, word_span
from qpdsl.planner.names.tool_calls import CALL_OR_TEXT
from qpdsl.planner.plan.logical import LogicalOp, LogicalProgram, OpenStrategy
from qpdsl.planner.plan.options import MAX_STAGES
from qpdsl.planner.plan.verify import verify_logical
from qpdsl.planner.strategies.written_strategies import (
    MAX_STRATEGIES,
    faults_of_strategies,
    is_open,
    open_faults,
    written_strategies,
)
from qpdsl.planner.values.value import common_type, fits

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
            checking = self._checked_open if is_open(program) else self._checked_closed
            checked = checking(module, program)
            for diagnostic in checked.diagnostics:
                module.report(diagnostic)
            self._checked[key] = checked
            self._depth -= 1
        return self._checked[key]

    def _lowered(self, module: Module, program: ast.Program) -> CheckedProgram:
        return _Lowering(self, module, program).run()

    def _checked_closed(self, module: Module, program: ast.Program) -> CheckedProgram:
        """An ordinary program, which leaves nothing to a budget."""
        checked = self._lowered(module, program)
        if program.budget is None:
            return checked
        message = f"`{program.name}` has a budget, and leaves nothing open that it could decide about"
        help = "write `auto` for a width, or `strategy { { … } or { … } }`"
        fault = Diagnostic("QP256", message, program.budget.span, "nothing to choose", help=help)
        return CheckedProgram(checked.program, (*checked.diagnostics, fault))

    def _checked_open(self, module: Module, program: ast.Program) -> CheckedProgram:
        """A program that leaves something open: each of its ways is checked as a program of its own."""
        faults = tuple(open_faults(program))
        called = {name: callee for name, (_, callee) in module.programs.items()}
        ways = list(islice(written_strategies(program, called.get), MAX_STRATEGIES))
        checked = [(way.arm, self._lowered_way(module, way.program)) for way in ways]
        first = checked[0][1].program
        opened = tuple(
            OpenStrategy(way.arm, way.head, way.widths, own.program)
            for way, (_, own) in zip(ways, checked, strict=True)
        )
        found = (*faults, *faults_of_strategies(program, [(arm, own.diagnostics) for arm, own in checked]))
        models = {name: id for _, own in checked for name, id in own.program.models.items()}
        lowered = replace(first, models=models, syntax=program, ways=opened, warnings=in_order(found))
        return CheckedProgram(lowered, found)

    def _lowered_way(self, module: Module, program: ast.Program) -> CheckedProgram:
        """A way of a program. The stages that its calls add are counted for it alone."""
        budget, self.budget = self.budget, InlineBudget()
        checked = self._lowered(module, program)
        self.budget = budget
        return checked

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
        bind_default_models(binder, self.params.models)
        self._check_clauses()
        plan: list[LogicalOp] = []
        for index, stage in enumerate(program.body):
            if isinstance(stage, ast.Return):
                self._check_last(index)
                break
            binder.add(plan, stage)
        self._check_else()
        result = return_value(binder, program.body, program.span)
        returns, parse, schema = self._returns(result, known=not binder.scope.gaps)
        optional, nones = self.syntax.optional, self._nones(result, binder)
        op = ast.Return(
            result.value,
            result.otherwise,
            parse,
            schema,
            optional,
            nones,
            stage=next(binder.stages),
            span=result.span,
        )
        plan.append(LogicalOp(op, binder.scope.types()))
        check_program_draft(binder, program)
        check_ahead(binder, program)
        lowered = LogicalProgram(
            name=program.name,
            source=file.source,
            params=self.params.all,
            models=binder.models,
            plan=tuple(plan),
            returns=f"{returns}{'?' if self.syntax.optional else ''}",
            record=self._record(result, parse=parse, checked=schema),
            model_params=tuple(self.params.models),
            score_column=binder.score_column,
            within=program.within,
            prefer=program.prefer.latency if program.prefer else None,
            budget=program.budget,
            deadline=None if program.deadline is None else program.deadline.seconds,
            syntax=program,
            warnings=in_order(self.diagnostics),
        )
        return CheckedProgram(lowered, tuple(self.diagnostics))

    def _binder(self) -> Binder:
        text = self.module.file.source.text
        gaps = tuple((gap.start, text[gap.start : gap.end]) for gap in self.gaps)
        first_makers = dict(reversed(list(column_makers(self.syntax.body))))
        self.params = parameters(self.module, self.syntax, self._report)
        values = {param.name: param for param in reversed(self.syntax.params) if param.name in self.params.types}
        in_order = {name: values[name] for name in self.params.types}
        models = {*self.module.models, *(name for name, own in self.params.models.items() if not lists_models(own))}
        scope = Scope(in_order, self._report, gaps, first_makers, models=models, param_types=self.params.types)
        calls = ((self.module, self.syntax),)
        checker = self.checker
        return Binder(scope, calls, checker.environment, checker.failed, checker.budget, add_stage)

    def _report(self, diagnostic: Diagnostic) -> None:
        """Keeps a diagnostic, unless the parser has reported an error with the same span."""
        if diagnostic.span not in self.syntax_errors and diagnostic not in self.diagnostics:
            self.diagnostics.append(diagnostic)

    # Head

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

    def _check_else(self) -> None:
        """Reports an `else` behind a stage that is not the program's last one."""
        for stage in walk_stages(self.syntax.body):
            otherwise = stage.otherwise if isinstance(stage, ast.ENDS) else None
            if otherwise is not None and stage is not self.syntax.body[-1]:
                message, help = (
                    "`else` says what the program gives back",
                    "write it behind the last stage: `return NAME else …`",
                )
                self._report(Diagnostic("QP217", message, otherwise.span, "the program goes on", help=help))

    def _nones(self, result: ReturnValue, binder: Binder) -> tuple[tuple[str, str, ast.SoughtText], ...]:
        """The columns that it gives back and that may be none, with the reason; warns of fields that must be there."""
        value, found = result.value, dict[str, tuple[str, ast.SoughtText]]()
        fields = value.fields if isinstance(value, ast.RecordLiteral) else ()
        for name, entry in [(value, None), *((entry.value, entry) for entry in fields)]:
            column = binder.scope.columns.get(name.id) if isinstance(name, ast.Name) else None
            maker = column.maker if column is not None else None
            stages = list(walk_stages(self.syntax.body))
            if (
                not isinstance(name, ast.Name)
                or not isinstance(maker, ast.Extract)
                or all(maker is not one for one in stages)
            ):
                continue
            sought = sought_by(maker)
            if sought is None:
                continue
            line, _ = self.module.file.source.position(maker.span.start)
            what = "regex" if maker.built_in is None else f"`{maker.built_in}`"
            found[name.id] = f"the {what} of line {line} matched nothing", sought
            if entry is not None and result.otherwise is None and not self.syntax.optional:
                self._warn_none(name, entry, maker, stages)
        return tuple((name, *why) for name, why in found.items())

    def _warn_none(self, name: ast.Name, entry: ast.RecordEntry, maker: ast.Extract, stages: list[ast.Stage]) -> None:
        """Warns of a field that must be there and may be none, where no stage after the `extract` looks at that."""
        after = [stage for stage in stages if stage.span.start > maker.span.start and not isinstance(stage, ast.Return)]
        looked = any(node.id == name.id for stage in after for node in walk(stage) if isinstance(node, ast.Name))
        type_: ast.TypeExpr | None = self.syntax.returns
        if isinstance(type_, ast.TypeRef):
            type_ = next((schema.type for schema in self.module.file.schemas if schema.name == type_.name), None)
        declared = [own for own in type_.fields if own.name == entry.name] if isinstance(type_, ast.RecordType) else []
        if looked or not declared or declared[0].optional:
            return
        shown = format_type(declared[0].type)
        message = f"`{name.id}` may be none, and the field `{entry.name}` of the result may not"
        why = (Label(maker.span, "where this matches nothing"), Label(declared[0].span, "always there"))
        end = Span(declared[0].type.span.end, declared[0].type.span.end)
        help = f"declare it `{entry.name}: {shown}?`"
        self._report(
            Diagnostic("QP278", message, name.span, "may be none", why, (), help, Edit(end, "?"), severity="warning")
        )

    def _check_last(self, index: int) -> None:
        body = self.syntax.body
        if index + 1 < len(body):
            first = (Label(body[index].span, "the program ends here"),)
            what = word_span(body[index + 1])
            self._report(Diagnostic("QP217", "nothing runs after `return`", what, "never reached", first))

    def _returns(self, result: ReturnValue, *, known: bool) -> tuple[str, bool, str | None]:
        """The type of the program's result, whether a JSON text spells it, and the schema that the run checks it by."""
        declared = self.syntax.returns
        if declared is None:
            return result.type, False, None
        form = format_type(declared)
        if isinstance(declared, ast.TypeRef) and declared.name in TYPES:
            held = None if result.schema is None or result.type != "text" else value_type(result.schema.document)
            if held is not None and form != "text" and fits(held, form):
                return form, True, None
            if result.type != "none" and not fits(result.type, form) and known:
                self._misfit(declared, result, result.type)
            return form, False, None
        named = isinstance(declared, ast.TypeRef)
        schema = self.module.compiled(declared, TYPES, self._report)
        parse = result.type == "text" and result.schema is not None
        if schema is None or result.schema == schema:
            return form, parse, None
        wanted = value_type(schema.document)
        held = value_type(result.schema.document) if parse and result.schema and not named else result.type
        if held == "text" and wanted != "text" and known:
            self._misfit(declared, result, "a text that is not held to it")
        elif held != "none" and not fits(held, wanted) and common_type(held, wanted) != wanted and known:
            self._misfit(declared, result, result.type)
        return form, parse and wanted != "text", schema.source

    def _record(self, result: ReturnValue, *, parse: bool, checked: str | None) -> str | None:
        """The JSON Schema of all that the program returns, as text; None where it is held to none."""
        held = result.schema is not None and result.otherwise is None and (parse or result.type != "text")
        return checked or (result.schema.source if held and result.schema else None)

    def _misfit(self, declared: ast.TypeExpr, result: ReturnValue, shown: str) -> None:
        name, form, help, edit = self.syntax.name, format_type(declared), None, None
        if form not in TYPES and (result.type == "text" or result.schema is not None):
            what = result.schema.name if result.schema else result.type
            shown = f"`{what}`" if result.schema else shown if what == "text" else what
            what = "schema" if isinstance(declared, ast.TypeRef) else "type"
            help = f"hold what it generates last to the {what}: `generate … as {form}`"
            last = self.syntax.body[-1] if self.syntax.body else None
            if isinstance(last, ast.Generate) and last.target is not None and not (last.into or result.schema):
                # The turn holds other text before it.
                help = f"name it: `generate … as {form} into answer`, then `return answer`"
        elif result.type in CALL_OR_TEXT.values():
            help = "leave the type out: a call is a record"
        elif "unknown" not in result.type and "record" not in result.type:
            help, edit = f"declare it `-> {result.type}`", Edit(declared.span, result.type)
        message = f"program `{name}` is declared to give {form}, but it gives {shown}"
        why = (Label(result.span, f"this gives {shown}"),)
        self._report(Diagnostic("QP214", message, declared.span, f"declared {form}", why, help=help, edit=edit))


_BARE = Environment()
# Warnings that may be caused by an error elsewhere.
_CAUSED_BY_ERRORS = frozenset({"QP229", "QP265", "QP270", "QP302", "QP305"})
# Refusals by llguidance. They are dropped where the parser has already reported an error in the constraint.
_REFUSALS = frozenset({"QP306", "QP307"})


def lower(file: ast.File, program: str | None = None, environment: Environment = _BARE) -> LogicalProgram:
    """The plan of one program of the file: the one named, or the only one, or the one with the file's name.

    The whole file is checked, and each file that it uses. Raises `QpError` with all errors, those of the parser
    included.
    """
    lowered, diagnostics = lower_all(file, environment)
    chosen = _choose(file, program, diagnostics)
    _raise_errors(file, diagnostics)
    assert chosen is not None
    return lowered[file.programs.index(chosen)]


def check(file: ast.File, environment: Environment = _BARE) -> tuple[Diagnostic, ...]:
    """Checks every program of the file: returns the warnings, raises `QpError` if there is an error."""
    _, diagnostics = lower_all(file, environment)
    _raise_errors(file, diagnostics)
    return in_order(diagnostics)


def lower_all(file: ast.File, environment: Environment) -> tuple[list[LogicalProgram], list[Diagnostic]]:
    """Every program of the file, and all diagnostics. If one is an error, the plans are of use to editors only."""
    diagnostics: list[Diagnostic] = []
    modules = Modules(file, environment, diagnostics)
    for module in modules.all():
        for fault in _too_long(module.file):
            module.report(fault)
    if any(diagnostic.code == "QP310" for diagnostic in diagnostics):
        return [], diagnostics
    checker = Checker(environment)
    for module in modules.all():
        for program in module.file.programs:
            checker.check(module, program)
    checked = [checker.check(modules.main, program) for program in file.programs]
    lowered = [program.program for program in checked if program is not None]
    if any(diagnostic.severity == "error" for diagnostic in diagnostics):
        return lowered, diagnostics
    for logical in lowered:
        for one in (logical, *(way.program for way in logical.ways)):
            verify_logical(one.plan, {param.name for param in one.params})
    declared = (*unused_declarations(file), *modules.main.schemas.warnings)
    callers = read_by_callers(modules.all())
    unused = [
        (
            *declared,
            *out_of_its_depth(logical, program),
            *unused_in(logical, program, callers.get(id(program), frozenset())),
        )
        for logical, program in zip(lowered, file.programs, strict=True)
    ]
    diagnostics += dict.fromkeys(warning for warnings in unused for warning in warnings)
    return [
        replace(logical, warnings=in_order((*logical.warnings, *warnings)))
        for logical, warnings in zip(lowered, unused, strict=True)
    ], diagnostics


def _too_long(file: ast.File) -> Iterator[Diagnostic]:
    for program in file.programs:
        stages = sum(1 for _ in walk_stages(program.body))
        if stages > MAX_STAGES:
            message = f"`{program.name}` has {stages:,} stages; a program has at most {MAX_STAGES:,}"
            yield Diagnostic("QP310", message, program.name_span, "too many", help="`repeat` runs stages again")


def _raise_errors(file: ast.File, diagnostics: list[Diagnostic]) -> None:
    """Raises `QpError` if there is an error, without the diagnostics that only follow from another one."""
    if any(diagnostic.severity == "error" for diagnostic in diagnostics):
        syntax_errors = [error for error in diagnostics if error.code.startswith("QP1")]
        independent = (
            diagnostic
            for diagnostic in diagnostics
            if diagnostic.code not in _CAUSED_BY_ERRORS
            and not (diagnostic.code in _REFUSALS and _contains_error(diagnostic, syntax_errors))
        )
        raise QpError(independent, file.source)


def _contains_error(diagnostic: Diagnostic, errors: list[Diagnostic]) -> bool:
    """Whether one of the errors lies inside the span of the diagnostic."""
    span = diagnostic.span
    spans = (error.span for error in errors if error.source is diagnostic.source)
    return any(span.start <= other.start and other.end <= span.end for other in spans)


def _choose(file: ast.File, name: str | None, diagnostics: list[Diagnostic]) -> ast.Program | None:
    """The program to lower; reports where it cannot be told which."""
    programs = file.programs
    wanted = PurePath(file.source.name).stem if name is None else name
    if name is None and len(programs) == 1:
        return programs[0]
    chosen = next((program for program in programs if program.name == wanted), None)
    if chosen is not None or not programs or not file.complete:
        return chosen
    names = ", ".join(program.name for program in programs)
    others = tuple(Label(program.name_span, "") for program in programs[1:])
    first = programs[0].name_span
    if name is None and any(diagnostic.severity == "error" for diagnostic in diagnostics):
        return None
    if name is None:
        message = f"the file has {len(programs)} programs; say which one"
        how = f'`--program {programs[0].name}` on the command line, or `qp.load(FILE, "{programs[0].name}")`'
        diagnostics.append(Diagnostic("QP220", message, first, "", others, (f"programs: {names}",), how))
    else:
        near = closest(name, [program.name for program in programs])
        help = f"did you mean `{near}`?" if near else None
        if "," in name:
            help = "`--program` names one; without it `qpdsl eval` takes all programs of the file"
        notes = (f"programs: {names}",)
        diagnostics.append(Diagnostic("QP202", f"no program `{name}` in this file", first, "", others, notes, help))
    return None
