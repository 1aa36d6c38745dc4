"""Syntax tree to logical plan: names resolved, types checked, every error of the file in one go."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath

from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import Diagnostic, Label, QpError, in_order
from qpdsl.grammar.suggest import closest
from qpdsl.planner.check.program import Checker
from qpdsl.planner.check.unused import read_by_callers, unused_declarations, unused_in
from qpdsl.planner.names.modules import Environment, Modules
from qpdsl.planner.plan.logical import LogicalProgram
from qpdsl.planner.plan.verify import verify_logical

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
        (*declared, *unused_in(logical, program, callers.get(id(program), frozenset())))
        for logical, program in zip(lowered, file.programs, strict=True)
    ]
    diagnostics += dict.fromkeys(warning for warnings in unused for warning in warnings)
    return [
        replace(logical, warnings=in_order((*logical.warnings, *warnings)))
        for logical, warnings in zip(lowered, unused, strict=True)
    ], diagnostics


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
        diagnostics.append(Diagnostic("QP220", message, first, "", others, notes=(f"programs: {names}",)))
    else:
        near = closest(name, [program.name for program in programs])
        help = f"did you mean `{near}`?" if near else None
        notes = (f"programs: {names}",)
        diagnostics.append(Diagnostic("QP202", f"no program `{name}` in this file", first, "", others, notes, help))
    return None
