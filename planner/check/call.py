"""`call`: another program's stages in the place of the stage, its parameters replaced by the arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import Diagnostic
from qpdsl.grammar.format.unparse import format_expr
from qpdsl.grammar.source import Span
from qpdsl.planner.check.binder import Binder, ModuleProgram, return_value
from qpdsl.planner.names.substitute import names_in_strings, substitute
from qpdsl.planner.names.unknown import suggestion
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.evaluate import evaluate
from qpdsl.planner.plan.logical import PlanBuilder
from qpdsl.planner.plan.options import MOST_CALLS, constant
from qpdsl.planner.plan.reads import is_fixed

Report = Callable[[Diagnostic], None]
# Faults of the call itself, wherever in the called program they are noticed.
_FAULTS_OF_THE_CALL = frozenset({"QP224", "QP310"})


def inline(binder: Binder, plan: PlanBuilder, call: ast.Call) -> None:
    """Adds the called program's stages, their numbers continued; its result goes to the column of `into`."""
    callee = _find(binder, call)
    values = _parameter_values(binder, call, callee[1]) if callee else None
    if callee is None or values is None or not _may_enter(binder, call, callee):
        # The columns that the call would have made are not known, so a missing one is no error.
        binder.scope.gaps = (*binder.scope.gaps, (call.span.start, ""))
        if call.into is not None:
            binder.make(call, call.into, "unknown")
        return
    stages = tuple(substitute(stage, values, call.name_span) for stage in callee[1].body)
    with _entered(binder, call, callee):
        for stage in stages:
            if isinstance(stage, ast.Return) or not _has_budget(binder, call):
                break
            binder.add(plan, stage)
        result = return_value(binder, stages, call.span)
    if call.into is not None:
        binder.make(call, call.into, result.type, result.schema)
        op = ops.Assign(call.into.id, result.value, stage=binder.next_stage(), span=call.span)
        plan.add(op, binder.scope.types())


def _find(binder: Binder, call: ast.Call) -> ModuleProgram | None:
    programs = binder.module.programs
    callee = programs.get(call.program)
    if callee is None and "program" not in binder.module.missing:
        notes = (f"programs: {', '.join(programs)}",)
        fix = suggestion(call.program, call.name_span, programs)
        fix = fix or {"help": 'declare it in this file, or bring it in: `use "file.qp"`'}
        message = f"unknown program `{call.program}`"
        binder.scope.error("QP202", message, call.name_span, "not declared", notes=notes, **fix)
    return callee


def _may_enter(binder: Binder, call: ast.Call, callee: ModuleProgram) -> bool:
    """False where the program is already being called. Each program of a cycle reports the cycle for itself."""
    if callee in binder.calls:
        if callee == binder.calls[0]:
            way = " → ".join(f"`{program.name}`" for _, program in (*binder.calls, callee))
            notes = ("`repeat` runs stages again",)
            message = f"a program cannot call itself: {way}"
            binder.scope.error("QP224", message, call.name_span, "comes back here", notes=notes)
        return False
    if len(binder.calls) > MOST_CALLS:
        message = f"programs call one another over {MOST_CALLS} deep"
        binder.scope.error("QP310", message, call.name_span, "one too many")
        return False
    return True


def _has_budget(binder: Binder, call: ast.Call) -> bool:
    """Takes a stage from the budget. Calls inside calls multiply, so the number of stages in a file is bounded."""
    binder.budget.stages -= 1
    if binder.budget.stages == 0:
        message = "the calls of this file grow it to too many stages"
        binder.scope.error("QP310", message, call.name_span, "here the limit is reached")
    return binder.budget.stages > 0


@contextmanager
def _entered(binder: Binder, call: ast.Call, callee: ModuleProgram) -> Iterator[None]:
    calls, report = binder.calls, binder.scope.report
    outermost = len(calls) == 1
    if outermost:
        binder.scope.report = _at_call(call, report, quiet=binder.failed(*callee))
    binder.calls = (*calls, callee)
    yield
    binder.calls, binder.scope.report = calls, report


def _at_call(call: ast.Call, report: Report, *, quiet: bool) -> Report:
    """Reports a fault that the called program has only in this place as one of the call.

    `quiet` says that the called program has an error of its own, which is reported there.
    """
    arguments = [argument.value.span for argument in call.arguments]

    def report_at_call(fault: Diagnostic) -> None:
        if fault.code in _FAULTS_OF_THE_CALL:
            report(fault)
        elif quiet or fault.severity == "warning":
            return
        elif any(span.start <= fault.span.start and fault.span.end <= span.end for span in arguments):
            report(replace(fault, secondary=(), edit=None, help=None))
        else:
            message = f"in `{call.program}`: {fault.message}"
            report(Diagnostic(fault.code, message, call.name_span, "called here", notes=fault.notes))

    return report_at_call


def _parameter_values(binder: Binder, call: ast.Call, program: ast.Program) -> dict[str, ast.Expr] | None:
    """A value for each parameter; None where there is an error, which is reported."""
    arguments = _arguments(binder, call, program)
    if arguments is None:
        return None
    in_strings = names_in_strings(program.body)
    values: dict[str, ast.Expr] = {}
    sound = True
    for name, param in {param.name: param for param in program.params}.items():
        value = arguments[name].value if name in arguments else constant(param.default)
        if value is None:
            sound = False
            if param.default is None:
                form = ", ".join(f"{declared.name}: {declared.type.name}" for declared in program.params)
                message = f"`{call.program}` needs a value for `{name}`"
                notes = (f"form: {call.program}({form})",)
                binder.scope.error("QP231", message, call.name_span, f"`{name}` is not given", notes=notes)
            continue
        if name in arguments:
            wanted = param.type.name
            shown = {"int": "an int", "float": "a number"}.get(wanted, f"a {wanted}")
            if binder.expect(call, f"`{name}` of `{call.program}`", value, wanted, shown) == "unknown":
                sound = False
                continue
            value = _folded(value)
            if name in in_strings and not isinstance(value, (ast.Name, ast.Literal, ast.Template)):
                message = f"`{call.program}` puts `{name}` into a string, so that it cannot be worked out here"
                help = "give a value, a parameter or a string"
                binder.scope.error("QP231", message, value.span, f"`{format_expr(value)}`", help=help)
                sound = False
        else:
            value = replace(value, span=call.name_span)
        values[name] = value
    return values if sound else None


def _folded(expr: ast.Expr) -> ast.Expr:
    """The literal value of an expression without names; any other expression itself."""
    if isinstance(expr, (ast.Name, ast.Template)) or not is_fixed(expr):
        return expr
    value = evaluate(expr, {})
    if isinstance(value, str):
        return ast.Template((value,) if value else (), span=expr.span)
    return expr if value is None else ast.Literal(value, span=expr.span)


def _arguments(binder: Binder, call: ast.Call, program: ast.Program) -> dict[str, ast.Argument] | None:
    """The arguments by parameter name, positional ones in order; None where there is an error, which is reported."""
    params = [param.name for param in program.params]
    arguments: dict[str, ast.Argument] = {}
    sound, named = True, False
    for index, argument in enumerate(call.arguments):
        name = argument.name
        if name is None:
            if named:
                message = "an argument without a name stands before those with one"
                binder.scope.error("QP231", message, argument.span, "give it a name, or move it")
                return None
            if index >= len(params):
                takes = f"{len(params)} argument{'' if len(params) == 1 else 's'}"
                message = f"`{call.program}` takes {takes}, found {len(call.arguments)}"
                binder.scope.error("QP231", message, argument.span, "one too many")
                return None
            name = params[index]
        named = named or argument.name is not None
        span = Span(argument.span.start, argument.span.start + len(name)) if argument.name else argument.span
        if name not in params:
            notes = (f"parameters: {', '.join(params) or 'none'}",)
            fix = suggestion(name, span, params)
            message = f"`{call.program}` has no parameter `{name}`"
            binder.scope.error("QP231", message, span, "unknown", notes=notes, **fix)
            sound = False
        elif name in arguments:
            binder.scope.error("QP231", f"`{name}` is given twice", span, "again here")
            sound = False
        else:
            arguments[name] = argument
    return arguments if sound else None
