"""Syntax tree to logical plan: names resolved, types checked, every error of the file in one go."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath

from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import Diagnostic, Edit, Label, QpError, in_order
from qpdsl.grammar.makers import makers
from qpdsl.grammar.source import Span
from qpdsl.grammar.suggest import closest
from qpdsl.grammar.words import COLUMNS, TYPES
from qpdsl.planner.infer import fits
from qpdsl.planner.logical import LogicalProgram, Parameter
from qpdsl.planner.options import constant
from qpdsl.planner.scope import Scope, Type, param_type
from qpdsl.planner.stages import StageChecker
from qpdsl.planner.verify import verify

_TYPE_ALIASES = {"str": "text", "string": "text", "integer": "int", "number": "float", "boolean": "bool"}


def lower(file: ast.File, program: str | None = None) -> LogicalProgram:
    """The plan of one program of the file: the one named, or the only one, or the one with the file's name.

    The whole file is checked. Raises `QpError` with all that is wrong, the parser's findings included.
    """
    lowered, found = _check(file)
    chosen = _choose(file, program, found)
    _raise(file, found)
    assert chosen is not None
    return lowered[file.programs.index(chosen)]


def check(file: ast.File) -> tuple[Diagnostic, ...]:
    """Checks every program of the file: returns the warnings, raises `QpError` if there is an error."""
    _, found = _check(file)
    _raise(file, found)
    return in_order(found)


def _raise(file: ast.File, found: list[Diagnostic]) -> None:
    if any(diagnostic.severity == "error" for diagnostic in found):
        raise QpError(found, file.source)


def _check(file: ast.File) -> tuple[list[LogicalProgram], list[Diagnostic]]:
    found = list(file.errors)
    _no_duplicates("model", file.models, found)
    _no_duplicates("program", file.programs, found)
    return [_Lowering(file, program, found).run() for program in file.programs], found


class _Lowering:
    """One program; what it finds goes to the list that all of the file's share."""

    def __init__(self, file: ast.File, program: ast.Program, found: list[Diagnostic]) -> None:
        self.file = file
        self.syntax = program
        self.found = found
        self.faulty: set[Span] = {error.span for error in file.errors}
        body = program.span
        self.gaps = tuple(gap for gap in file.gaps if body.start <= gap.start < body.end)

    def run(self) -> LogicalProgram:
        program, before = self.syntax, len(self.found)
        params: dict[str, ast.Param] = {}
        for param in program.params:
            params.setdefault(param.name, param)
            self._check_param(param)
        _no_duplicates("parameter", program.params, self.found)
        later = dict(reversed(list(makers(program.body))))
        gaps = tuple((gap.start, self.file.source.text[gap.start : gap.end]) for gap in self.gaps)
        scope = Scope(params, self._report, gaps, later)
        models = {model.name: model.id for model in self.file.models}
        inside = [gap for gap in self.file.gaps if any(_covers(p, gap.start) for p in self.file.programs)]
        checker = StageChecker(scope, models, models_known=len(inside) == len(self.file.gaps))
        plan = checker.program(program.body, program.span)
        returns = self._returns(checker.returns)
        mine = self.found[before:]
        if not self.file.errors and all(diagnostic.severity == "warning" for diagnostic in mine):
            verify(plan, params)
        parameters = tuple(Parameter(p.name, param_type(p), constant(p.default)) for p in program.params)
        return LogicalProgram(
            program.name,
            self.file.source.name,
            parameters,
            checker.models,
            plan,
            returns,
            checker.score_column,
            program,
            in_order(mine),
        )

    def _report(self, diagnostic: Diagnostic) -> None:
        """Takes a finding, but for one about what the parser has found faulty already."""
        if diagnostic.span not in self.faulty:
            self.found.append(diagnostic)

    def _check_param(self, param: ast.Param) -> None:
        self._check_type(param.type)
        if param.name in COLUMNS:
            message = f"`{param.name}` is a column of every row and cannot be a parameter too"
            self.found.append(Diagnostic("QP208", message, param.name_span, help="rename the parameter"))
        if param.default is None:
            return
        value = constant(param.default)
        if value is None:
            message = "a default is a number, a string, `true` or `false`"
            self.found.append(Diagnostic("QP213", message, param.default.span, "this must be worked out"))
            return
        actual: Type = "text"
        if isinstance(value, ast.Literal):
            actual = "none" if value.value is None else type(value.value).__name__  # type: ignore[assignment]
        wanted = param_type(param)
        if wanted != "unknown" and not fits(actual, wanted):
            message = f"`{param.name}` is declared {wanted}, but its default is {actual}"
            why = (Label(param.type.span, f"declared {wanted}"),)
            self.found.append(Diagnostic("QP213", message, param.default.span, f"this is {actual}", why))

    def _check_type(self, type_: ast.TypeRef) -> None:
        if type_.name in TYPES:
            return
        near = _TYPE_ALIASES.get(type_.name.lower()) or closest(type_.name, TYPES)
        self.found.append(
            Diagnostic(
                "QP206",
                f"unknown type `{type_.name}`",
                type_.span,
                notes=(f"types: {', '.join(TYPES)}",),
                help=f"did you mean `{near}`?" if near else None,
                edit=Edit(type_.span, near) if near else None,
            )
        )

    def _returns(self, actual: Type) -> str:
        declared = self.syntax.returns
        if declared is None:
            return actual
        self._check_type(declared)
        if declared.name in TYPES and actual != "none" and not fits(actual, declared.name) and not self.gaps:
            body = self.syntax.body
            last = next((stage for stage in body if isinstance(stage, ast.Return)), body[-1])
            message = f"program `{self.syntax.name}` is declared to give {declared.name}, but it gives {actual}"
            why = (Label(last.span, f"this gives {actual}"),)
            self.found.append(Diagnostic("QP214", message, declared.span, f"declared {declared.name}", why))
        return declared.name


def _covers(program: ast.Program, offset: int) -> bool:
    return program.span.start <= offset < program.span.end


def _no_duplicates(kind: str, nodes: Iterable[ast.Model | ast.Program | ast.Param], found: list[Diagnostic]) -> None:
    seen: dict[str, ast.Model | ast.Program | ast.Param] = {}
    for node in nodes:
        first = seen.setdefault(node.name, node)
        if first is not node:
            why = (Label(first.name_span, "the first"),)
            found.append(Diagnostic("QP208", f"{kind} `{node.name}` is declared twice", node.name_span, "again", why))


def _choose(file: ast.File, name: str | None, found: list[Diagnostic]) -> ast.Program | None:
    """The program that is meant; reports where that cannot be told."""
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
    if name is None and any(diagnostic.severity == "error" for diagnostic in found):
        return None
    if name is None:
        message = f"the file has {len(programs)} programs; say which one"
        found.append(Diagnostic("QP220", message, first, "", others, notes=(f"programs: {names}",)))
    else:
        near = closest(name, [program.name for program in programs])
        help = f"did you mean `{near}`?" if near else None
        notes = (f"programs: {names}",)
        found.append(Diagnostic("QP202", f"no program `{name}` in this file", first, "", others, notes, help))
    return None
