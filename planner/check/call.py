"""`call`: another program's stages, its parameters replaced by the arguments.

Without `into` they stand in the place of the stage. With `into` they run on rows of their own, and of those nothing but
the value that the program gives back comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from qpdsl.grammar import ast
from qpdsl.grammar.ast.walk import column_name, walk, walk_stages
from qpdsl.grammar.diagnostic import Diagnostic, Label
from qpdsl.grammar.format.unparse import format_expr
from qpdsl.grammar.source import Span
from qpdsl.planner.check.binder import Binder, Flow, ModuleProgram, return_value
from qpdsl.planner.names.scope import BoundColumn
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


def add_call(binder: Binder, plan: PlanBuilder, call: ast.Call) -> None:
    """Adds the called program, the numbers of the stages continued."""
    callee = _find(binder, call)
    values = _parameter_values(binder, call, callee[1]) if callee else None
    if callee is None or values is None or not _may_enter(binder, call, callee):
        # The columns that the call would have made are not known, so a missing one is no error.
        binder.scope.gaps = (*binder.scope.gaps, (call.span.start, ""))
        if call.into is not None:
            binder.make(call, call.into, "unknown")
        return
    stages = tuple(substitute(stage, values, call.name_span) for stage in callee[1].body)
    if call.into is None:
        before = dict(binder.scope.columns)
        with _entered(binder, call, callee):
            _add_stages(binder, plan, call, stages)
        _warn_replaced(binder, call, before)
        return
    number = binder.next_stage()
    with _entered(binder, call, callee), _own_rows(binder):
        body = PlanBuilder(ops.Start(stage=number, span=call.span), {})
        _add_stages(binder, body, call, stages)
        result = return_value(binder, stages, call.span)
    binder.change(aside=call)
    binder.make(call, call.into, result.type, result.schema)
    op = ops.Call(call.program, body.done(), result.value, call.into.id, stage=number, span=call.span)
    plan.add(op, binder.scope.types())


def _add_stages(binder: Binder, plan: PlanBuilder, call: ast.Call, stages: tuple[ast.Stage, ...]) -> None:
    for stage in stages:
        if isinstance(stage, ast.Return) or not _has_budget(binder, call):
            break
        binder.add(plan, stage)


@contextmanager
def _own_rows(binder: Binder) -> Iterator[None]:
    """For stages that run on rows of their own: no columns, nothing known of them, and nothing of theirs afterwards."""
    scope = binder.scope
    columns, flow, score_column, rounds = scope.columns, binder.flow, binder.score_column, binder.rounds
    scope.columns, binder.flow, binder.rounds = {}, Flow(), 0
    yield
    scope.columns, binder.flow, binder.score_column, binder.rounds = columns, flow, score_column, rounds


def _warn_replaced(binder: Binder, call: ast.Call, before: Mapping[str, BoundColumn]) -> None:
    """Warns of columns that the called stages put in the place of the caller's own, where those are read afterwards."""
    read = {
        node.id
        for node in walk(binder.program.body)
        if isinstance(node, ast.Name) and (binder.rounds or node.span.start >= call.span.end)
    }
    own = {id(stage) for stage in walk_stages(binder.program.body)}
    for name, column in before.items():
        now = binder.scope.columns[name].maker
        if column.maker is None or id(column.maker) not in own or now is column.maker or name not in read:
            continue
        made = (Label((column_name(column.maker) or column.maker).span, f"this `{name}` is lost"),)
        message = f"`{call.program}` puts its own `{name}` in the place of the one made before"
        help = "`call … into NAME` keeps what the program makes to itself; or give one of the columns another name"
        binder.warn(Diagnostic("QP266", message, call.name_span, f"makes `{name}`", made, help=help))


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
        continues = call.into is None and binder.flow.context is not None
        binder.scope.report = _at_call(call, report, quiet=binder.failed(*callee), continues=continues)
    binder.calls = (*calls, callee)
    yield
    binder.calls, binder.scope.report = calls, report


def _at_call(call: ast.Call, report: Report, *, quiet: bool, continues: bool) -> Report:
    """Reports a fault that the called program has only in this place as one of the call.

    `quiet` says that the called program has an error of its own, which is reported there; `continues` that the call
    goes on with a conversation, whose turns a verifier in the called program may be shown.
    """
    arguments = [argument.value.span for argument in call.arguments]

    def report_at_call(fault: Diagnostic) -> None:
        if fault.code in _FAULTS_OF_THE_CALL:
            report(fault)
        elif continues and not quiet and fault.code == "QP275":
            help = f"write `given` at the `score` in `{call.program}`"
            report(replace(fault, span=call.name_span, secondary=(), help=help, edit=None))
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
