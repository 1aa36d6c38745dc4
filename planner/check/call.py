"""`call`: another program's stages in the place of the stage, its parameters replaced by the arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import Diagnostic
from qpdsl.grammar.format.unparse import format_expr
from qpdsl.grammar.source import Span
from qpdsl.planner.names.modules import Module
from qpdsl.planner.names.substitute import names_in_strings, substitute
from qpdsl.planner.names.unknown import suggestion
from qpdsl.planner.names.walk import Walk, result
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.evaluate import evaluate
from qpdsl.planner.plan.logical import Chain
from qpdsl.planner.plan.options import MOST_CALLS, constant
from qpdsl.planner.plan.reads import is_fixed

Add = Callable[[Walk, Chain, ast.Stage], None]
Report = Callable[[Diagnostic], None]
# What is wrong with the call itself, wherever in the called program it comes out.
_OF_THE_CALL = frozenset({"QP224", "QP310"})


def inline(walk: Walk, chain: Chain, call: ast.Call, add: Add) -> None:
    """Adds the program's stages, numbered on from those before; its result goes to the column asked for."""
    found = _find(walk, call)
    values = _bind(walk, call, found[1]) if found else None
    if found is None or values is None or not _may_enter(walk, call, found):
        # What the call would have made is not known, so its lack is no error.
        walk.scope.gaps = (*walk.scope.gaps, (call.span.start, ""))
        if call.into is not None:
            walk.make(call, call.into, "unknown")
        return
    stages = tuple(substitute(stage, values, call.name_span) for stage in found[1].body)
    with _inside(walk, call, found):
        for stage in stages:
            if isinstance(stage, ast.Return) or not _has_room(walk, call):
                break
            add(walk, chain, stage)
        given = result(walk, stages, call.span)
    if call.into is not None:
        walk.make(call, call.into, given.type, given.schema)
        op = ops.Assign(call.into.id, given.value, stage=walk.next(), span=call.span)
        chain.add(op, walk.scope.types())


def _find(walk: Walk, call: ast.Call) -> tuple[Module, ast.Program] | None:
    programs = walk.module.programs
    found = programs.get(call.program)
    if found is None and "program" not in walk.module.missing:
        notes = (f"programs: {', '.join(programs)}",)
        fix = suggestion(call.program, call.name_span, programs)
        fix = fix or {"help": 'declare it in this file, or bring it in: `use "file.qp"`'}
        message = f"unknown program `{call.program}`"
        walk.scope.error("QP202", message, call.name_span, "not declared", notes=notes, **fix)
    return found


def _may_enter(walk: Walk, call: ast.Call, found: tuple[Module, ast.Program]) -> bool:
    """Not where the program is in the midst of being called. Each program of a cycle reports it for itself."""
    if found in walk.calls:
        if found == walk.calls[0]:
            way = " → ".join(f"`{program.name}`" for _, program in (*walk.calls, found))
            notes = ("`repeat` runs stages again",)
            message = f"a program cannot call itself: {way}"
            walk.scope.error("QP224", message, call.name_span, "comes back here", notes=notes)
        return False
    if len(walk.calls) > MOST_CALLS:
        message = f"programs call one another over {MOST_CALLS} deep"
        walk.scope.error("QP310", message, call.name_span, "one too many")
        return False
    return True


def _has_room(walk: Walk, call: ast.Call) -> bool:
    """Calls of calls multiply; what a file grows to by them is bounded."""
    walk.room.stages -= 1
    if walk.room.stages == 0:
        message = "the calls of this file grow it to too many stages"
        walk.scope.error("QP310", message, call.name_span, "here the limit is reached")
    return walk.room.stages > 0


@contextmanager
def _inside(walk: Walk, call: ast.Call, found: tuple[Module, ast.Program]) -> Iterator[None]:
    module, draft, calls, report = walk.module, walk.draft, walk.calls, walk.scope.report
    outermost = len(calls) == 1
    if outermost:
        walk.scope.report = _at_call(call, report, quiet=walk.failed(*found))
    walk.module, walk.draft, walk.calls = found[0], found[1].draft, (*calls, found)
    yield
    walk.module, walk.draft, walk.calls, walk.scope.report = module, draft, calls, report


def _at_call(call: ast.Call, report: Report, *, quiet: bool) -> Report:
    """What the called program is right by itself and wrong here is wrong with the call; `quiet`: it is wrong anyway."""
    given = [argument.value.span for argument in call.arguments]

    def take(found: Diagnostic) -> None:
        if found.code in _OF_THE_CALL:
            report(found)
        elif quiet or found.severity == "warning":
            return
        elif any(span.start <= found.span.start and found.span.end <= span.end for span in given):
            report(replace(found, secondary=(), edit=None, help=None))
        else:
            message = f"in `{call.program}`: {found.message}"
            report(Diagnostic(found.code, message, call.name_span, "called here", notes=found.notes))

    return take


def _bind(walk: Walk, call: ast.Call, program: ast.Program) -> dict[str, ast.Expr] | None:
    """A value for each parameter; None where there is an error, which is reported."""
    params = {param.name: param for param in program.params}
    given = _placed(walk, call, program)
    if given is None:
        return None
    in_strings = names_in_strings(program.body)
    values: dict[str, ast.Expr] = {}
    sound = True
    for name, param in params.items():
        value = given[name].value if name in given else constant(param.default)
        if value is None:
            sound = False
            if param.default is None:
                form = ", ".join(f"{one.name}: {one.type.name}" for one in program.params)
                message = f"`{call.program}` needs a value for `{name}`"
                notes = (f"form: {call.program}({form})",)
                walk.scope.error("QP231", message, call.name_span, f"`{name}` is not given", notes=notes)
            continue
        if name in given:
            wanted = param.type.name
            shown = {"int": "an int", "float": "a number"}.get(wanted, f"a {wanted}")
            if walk.expect(call, f"`{name}` of `{call.program}`", value, wanted, shown) == "unknown":
                sound = False
                continue
            value = _simple(value)
            if name in in_strings and not isinstance(value, (ast.Name, ast.Literal, ast.Template)):
                message = f"`{call.program}` puts `{name}` into a string, so that it cannot be worked out here"
                help = "give a value, a parameter or a string"
                walk.scope.error("QP231", message, value.span, f"`{format_expr(value)}`", help=help)
                sound = False
        else:
            value = replace(value, span=call.name_span)
        values[name] = value
    return values if sound else None


def _simple(value: ast.Expr) -> ast.Expr:
    """The literal that an expression over no names comes to."""
    if isinstance(value, (ast.Name, ast.Template)) or not is_fixed(value):
        return value
    found = evaluate(value, {})
    if isinstance(found, str):
        return ast.Template((found,) if found else (), span=value.span)
    return value if found is None else ast.Literal(found, span=value.span)


def _placed(walk: Walk, call: ast.Call, program: ast.Program) -> dict[str, ast.Argument] | None:
    """The arguments by the names of their parameters, those without a name in order."""
    names_ = [param.name for param in program.params]
    placed: dict[str, ast.Argument] = {}
    sound, named = True, False
    for index, argument in enumerate(call.arguments):
        name = argument.name
        if name is None:
            if named:
                message = "an argument without a name stands before those with one"
                walk.scope.error("QP231", message, argument.span, "give it a name, or move it")
                return None
            if index >= len(names_):
                takes = f"{len(names_)} argument{'' if len(names_) == 1 else 's'}"
                message = f"`{call.program}` takes {takes}, found {len(call.arguments)}"
                walk.scope.error("QP231", message, argument.span, "one too many")
                return None
            name = names_[index]
        named = named or argument.name is not None
        span = Span(argument.span.start, argument.span.start + len(name)) if argument.name else argument.span
        if name not in names_:
            notes = (f"parameters: {', '.join(names_) or 'none'}",)
            fix = suggestion(name, span, names_)
            message = f"`{call.program}` has no parameter `{name}`"
            walk.scope.error("QP231", message, span, "unknown", notes=notes, **fix)
            sound = False
        elif name in placed:
            walk.scope.error("QP231", f"`{name}` is given twice", span, "again here")
            sound = False
        else:
            placed[name] = argument
    return placed if sound else None
