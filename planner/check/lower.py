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
from qpdsl.planner.plan.verify import verify

_BARE = Environment()
# Warnings that an error elsewhere may be the cause of.
_AFTER_ERRORS = frozenset({"QP229", "QP305"})
# What llguidance says of a constraint that the parser has found faulty already is no second error.
_COMPILED = frozenset({"QP306", "QP307"})


def lower(file: ast.File, program: str | None = None, environment: Environment = _BARE) -> LogicalProgram:
    """The plan of one program of the file: the one named, or the only one, or the one with the file's name.

    The whole file is checked, and each file that it uses. Raises `QpError` with all that is wrong, the parser's
    findings included.
    """
    lowered, found = lower_all(file, environment)
    chosen = _choose(file, program, found)
    _raise(file, found)
    assert chosen is not None
    return lowered[file.programs.index(chosen)]


def check(file: ast.File, environment: Environment = _BARE) -> tuple[Diagnostic, ...]:
    """Checks every program of the file: returns the warnings, raises `QpError` if there is an error."""
    _, found = lower_all(file, environment)
    _raise(file, found)
    return in_order(found)


def _raise(file: ast.File, found: list[Diagnostic]) -> None:
    if any(diagnostic.severity == "error" for diagnostic in found):
        syntax = [error for error in found if error.code.startswith("QP1")]
        told = (each for each in found if each.code not in _AFTER_ERRORS)
        raise QpError((each for each in told if each.code not in _COMPILED or not _holds(each, syntax)), file.source)


def _holds(diagnostic: Diagnostic, errors: list[Diagnostic]) -> bool:
    """Whether one of the errors lies inside what the diagnostic is about."""
    span = diagnostic.span
    mine = (error.span for error in errors if error.source is diagnostic.source)
    return any(span.start <= other.start and other.end <= span.end for other in mine)


def lower_all(file: ast.File, environment: Environment) -> tuple[list[LogicalProgram], list[Diagnostic]]:
    """Every program of the file, and all that was found; with an error in it, a plan is of use to editors only."""
    found: list[Diagnostic] = []
    modules = Modules(file, environment, found)
    checker = Checker(environment)
    for module in modules.all():
        for program in module.file.programs:
            checker.check(module, program)
    checked = [checker.check(modules.main, program) for program in file.programs]
    lowered = [each.program for each in checked if each is not None]
    if any(diagnostic.severity == "error" for diagnostic in found):
        return lowered, found
    for one in lowered:
        verify(one.plan, {param.name for param in one.params})
    declared = tuple(unused_declarations(file))
    callers = read_by_callers(modules.all())
    unused = [
        (*declared, *unused_in(one, program, callers.get(id(program), frozenset())))
        for one, program in zip(lowered, file.programs, strict=True)
    ]
    found += dict.fromkeys(each for warnings in unused for each in warnings)
    return [
        replace(one, warnings=in_order((*one.warnings, *more))) for one, more in zip(lowered, unused, strict=True)
    ], found


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
