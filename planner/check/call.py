"""`call`: another program's stages, its parameters replaced by the arguments.

Without `into` they stand in its place. With `into` they run on rows of their own, and of those nothing but the value
that the program gives back comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from qpdsl.grammar import ast
from qpdsl.grammar.ast.stage import Reads
from qpdsl.grammar.ast.walk import column_name, walk, walk_stages
from qpdsl.grammar.diagnostic import Diagnostic, Label
from qpdsl.grammar.format.unparse import format_expr, format_param_type
from qpdsl.grammar.source import Span
from qpdsl.grammar.suggest import did_you_mean
from qpdsl.grammar.words import TYPES, Type
from qpdsl.planner.check.binder import Binder, BoundModel, Flow, ModuleProgram, ReturnValue, return_value
from qpdsl.planner.names.json_schema import value_type
from qpdsl.planner.names.modules import Module
from qpdsl.planner.names.parameters import is_model, lists_models, parameters
from qpdsl.planner.names.scope import BoundColumn
from qpdsl.planner.names.substitute import names_in_strings, substitute
from qpdsl.planner.names.tool_calls import CALL_OR_TEXT
from qpdsl.planner.names.types import Typer
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.evaluate import evaluate
from qpdsl.planner.plan.logical import LogicalOp
from qpdsl.planner.plan.options import MAX_CALLS, spelt
from qpdsl.planner.plan.reads import is_fixed, names, reads_all_rows
from qpdsl.planner.strategies.written_strategies import is_open

Report = Callable[[Diagnostic], None]
# Faults of the call itself, wherever in the called program they are noticed.
_FAULTS_OF_THE_CALL = frozenset({"QP224", "QP310"})


def add_call(binder: Binder, plan: list[LogicalOp], call: ast.Call) -> None:
    """Adds the called program, the numbers of the stages continued."""
    callee = _find(binder, call)
    given: list[ops.GivenColumn] = []
    values = _parameter_values(binder, call, *callee, given) if callee else None
    if callee is None or values is None or not _may_enter(binder, call, callee):
        # The columns that the call would have made are not known, so a missing one is no error.
        binder.scope.gaps = (*binder.scope.gaps, (call.span.start, ""))
        if call.into is not None:
            binder.make(call, call.into, "unknown")
        return
    if call.depth is not None and binder.calls.count(callee) > int(call.depth.value or 0):
        _add_bottom(binder, plan, call, callee)
        return
    models = _model_values(binder, call, callee)
    stages = tuple(substitute(stage, values, call.name_span) for stage in callee[1].body)
    if call.into is None:
        before = dict(binder.scope.columns)
        with _entered(binder, call, callee, models, values):
            _add_stages(binder, plan, call, stages)
        _warn_replaced(binder, call, before)
        binder.continued[id(call)] = call, stages
        return
    number = next(binder.stages)
    with _entered(binder, call, callee, models, values), _own_rows(binder):
        binder.scope.columns.update({column.name: BoundColumn(column.type, call) for column in given})
        body: list[LogicalOp] = []
        _add_stages(binder, body, call, stages)
        result = return_value(binder, stages, call.span)
    binder.change(aside=call)
    held = _spelt_type(callee[1], result)
    type_ = "unknown" if result.type in CALL_OR_TEXT.values() else result.type
    binder.make(call, call.into, held or type_, result.schema)
    value, other = result.value, result.otherwise
    op = replace(call, arguments=(), depth=None, columns=tuple(given), value=value, otherwise=other, type=held)
    op = replace(op, stage=number)
    plan.append(LogicalOp(op, binder.scope.types(), (tuple(body),)))


def _add_bottom(binder: Binder, plan: list[LogicalOp], call: ast.Call, callee: ModuleProgram) -> None:
    """The column of a call that would go too deep: none, of the type that the program declares."""
    module, program = callee
    held = None if program.returns is None else module.compiled(program.returns, TYPES, _ignored)
    assert call.into is not None
    binder.make(call, call.into, "unknown" if held is None else value_type(held.document))
    nothing = ast.Literal(None, span=call.span)
    op = ast.Let(call.into, nothing, stage=next(binder.stages), span=call.span)
    plan.append(LogicalOp(op, binder.scope.types()))


def _spelt_type(program: ast.Program, result: ReturnValue) -> Type | None:
    """The type of a called program's value where it is declared and a JSON text spells it; else None."""
    declared = program.returns
    is_text = isinstance(declared, ast.ChoiceType) or (isinstance(declared, ast.TypeRef) and declared.name == "text")
    if declared is None or is_text or result.type != "text" or result.schema is None:
        return None
    return value_type(result.schema.document)


def _add_stages(binder: Binder, plan: list[LogicalOp], call: ast.Call, stages: tuple[ast.Stage, ...]) -> None:
    for stage in stages:
        if isinstance(stage, ast.Return):
            break
        if not _has_budget(binder, call):
            # What the rest would have made is not known.
            binder.scope.gaps = (*binder.scope.gaps, (call.span.start, ""))
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
        fix = did_you_mean(call.program, programs, call.name_span)
        fix = fix or {"help": 'declare it in this file, or bring it in: `use "file.qp"`'}
        message = f"unknown program `{call.program}`"
        binder.scope.error("QP202", message, call.name_span, "not declared", notes=notes, **fix)
    return callee


def _may_enter(binder: Binder, call: ast.Call, callee: ModuleProgram) -> bool:
    """False where the program is already being called. Each program of a cycle reports the cycle for itself."""
    if call.depth is not None and (call.into is None or not _comes_back(binder.calls[-1], callee)):
        message = f"`depth` is of a program that calls itself, and `{call.program}` does not come back here"
        help = "leave `depth` out"
        if call.into is None:
            message, help = "a call with `depth` makes a column", f"write `call {call.program}(…) into NAME depth=…`"
        if len(binder.calls) == 1:  # else the called program says so itself
            binder.scope.error("QP224", message, call.depth.span, help=help)
        return False
    if callee in binder.calls and call.depth is None:
        if callee == binder.calls[0]:
            way = " → ".join(f"`{program.name}`" for _, program in (*binder.calls, callee))
            notes = ("`repeat` runs stages again",)
            message = f"a program cannot call itself without end: {way}"
            help = "say how deep it goes, as in `call solve(part) into result depth=2`"
            binder.scope.error("QP224", message, call.name_span, "comes back here", notes=notes, help=help)
        return False
    if len(binder.calls) > MAX_CALLS:
        message = f"programs call one another over {MAX_CALLS} deep"
        binder.scope.error("QP310", message, call.name_span, "one too many")
        return False
    return True


def _comes_back(caller: ModuleProgram, callee: ModuleProgram) -> bool:
    """Whether a program calls another one, perhaps by way of others."""
    seen, queue = set[int](), [callee]
    while queue:
        module, program = queue.pop()
        if program is caller[1]:
            return True
        if id(program) not in seen:
            seen.add(id(program))
            called = (stage.program for stage in walk_stages(program.body) if isinstance(stage, ast.Call))
            queue += [module.programs[name] for name in called if name in module.programs]
    return False


def _has_budget(binder: Binder, call: ast.Call) -> bool:
    """Takes a stage from the budget. Calls inside calls multiply, so the number of stages in a file is bounded."""
    binder.budget.stages -= 1
    if binder.budget.stages == 0:
        message = "the calls of this file grow it to too many stages"
        binder.scope.error("QP310", message, call.name_span, "here the limit is reached")
    return binder.budget.stages > 0


@contextmanager
def _entered(
    binder: Binder,
    call: ast.Call,
    callee: ModuleProgram,
    models: Mapping[str, BoundModel],
    values: Mapping[str, ast.Expr],
) -> Iterator[None]:
    """For the stages of the called program, in which the parameters stand for these models and values."""
    calls, report, outer = binder.calls, binder.scope.report, (binder.model_values, binder.values)
    outermost = len(calls) == 1
    if outermost:
        continues = call.into is None and binder.flow.context is not None
        binder.scope.report = _at_call(call, report, quiet=binder.failed(*callee), continues=continues)
    binder.calls, binder.model_values, binder.values = (*calls, callee), models, values
    yield
    binder.calls, binder.scope.report, (binder.model_values, binder.values) = calls, report, outer


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


def _ignored(diagnostic: Diagnostic) -> None:
    """What is wrong with a declaration is reported where it stands."""


def _report_missing(binder: Binder, call: ast.Call, program: ast.Program, name: str) -> None:
    form = ", ".join(f"{param.name}: {format_param_type(param)}" for param in program.params)
    message = f"`{call.program}` needs a value for `{name}`"
    notes = (f"form: {call.program}({form})",)
    binder.scope.error("QP231", message, call.name_span, f"`{name}` is not given", notes=notes)


def _model_values(binder: Binder, call: ast.Call, callee: ModuleProgram) -> dict[str, BoundModel]:
    """What the parameters of the called program that are models stand for; what is wrong with one is reported."""
    module, program = callee
    arguments = by_name(binder, call.program, call.arguments, [param.name for param in program.params]) or {}
    bound: dict[str, BoundModel] = {}
    for param in program.params:
        if not is_model(param, module):
            continue
        value, own = (arguments[param.name].value, False) if param.name in arguments else (param.default, True)
        if lists_models(param) and value is not None:
            bound |= _models_listed(binder, call, param, value, module if own else None)
            continue
        ref = None if value is None else _model_ref(value)
        bound[f"{param.name}[0]" if lists_models(param) else param.name] = BoundModel(param.name, "")
        if ref is not None:
            key = binder.model(ref, module=module if own else None, used=False)
            kind = None if ref.quoted else module.kinds.get(ref.name) if own else binder.kind_of(ref.name)
            bound[param.name] = BoundModel(key, binder.models.get(key, ""), kind)
        elif value is None:
            _report_missing(binder, call, program, param.name)
        elif not own:
            message = f"`{param.name}` of `{call.program}` takes a model, which is a name or a quoted id"
            binder.scope.error("QP361", message, value.span, "no model")
    return bound


def _models_listed(
    binder: Binder, call: ast.Call, param: ast.Param, value: ast.Expr, module: Module | None
) -> dict[str, BoundModel]:
    """What a list of models stands for in the called program: that of a parameter here, or names and quoted ids."""
    models = list(binder.several(value.id)) if isinstance(value, ast.Name) else []
    for item in value.items if isinstance(value, ast.ListLiteral) else ():
        if (ref := _model_ref(item)) is not None:
            key = binder.model(ref, module=module, used=False)
            kind = None if ref.quoted else binder.kind_of(ref.name) if module is None else module.kinds.get(ref.name)
            models.append(BoundModel(key, binder.models.get(key, ""), kind))
    if module is None and (not models or (isinstance(value, ast.ListLiteral) and len(models) < len(value.items))):
        message = f"`{param.name}` of `{call.program}` takes a list of models, which are names and quoted ids"
        binder.scope.error("QP361", message, value.span, "no list of models")
    return {f"{param.name}[{at}]": model for at, model in enumerate(models or [BoundModel(param.name, "")])}


def _model_ref(value: ast.Expr) -> ast.ModelRef | None:
    """The model that an expression names: a name, that of another file, or a quoted id."""
    match value:
        case ast.Name(id=name):
            return ast.ModelRef(name, False, span=value.span)
        case ast.Path(base=base, steps=(str(name),)):
            return ast.ModelRef(f"{base.id}.{name}", False, span=value.span)
        case ast.Template(parts=(str(id),)):
            return ast.ModelRef(id, True, span=value.span)
    return None


def _parameter_values(
    binder: Binder, call: ast.Call, module: Module, program: ast.Program, given: list[ops.GivenColumn]
) -> dict[str, ast.Expr] | None:
    """A value for each parameter; None where there is an error, which is reported.

    Where the program runs on rows of its own, an argument that differs from row to row is added to `given`: its value
    is a column of those rows.
    """
    arguments = by_name(binder, call.program, call.arguments, [param.name for param in program.params])
    if arguments is None:
        return None
    if not _is_closed(binder, call, program, arguments):
        return None
    in_strings = names_in_strings(program.body)
    values: dict[str, ast.Expr] = {}
    sound = True
    declared = parameters(module, program, _ignored)
    for name, param in {param.name: param for param in declared.all}.items():
        value = arguments[name].value if name in arguments else param.default
        if value is None:
            sound = False
            _report_missing(binder, call, program, name)
            continue
        if name in arguments:
            wanted = param.type
            known = {"int": "an int", "float": "a number", "text": "a text", "bool": "a bool"}
            shown = known.get(wanted, f"`{param.declared}`")
            accepted = {wanted, "none"} if param.optional else {wanted}
            accepted |= {"[record]", "[{role: text, content: text}]"} if wanted == "messages" else set()
            own_rows = call.into is not None
            reads: Reads = "option" if own_rows else "parameters"
            place = f"`{name}` of `{call.program}`"
            if Typer(binder.scope, call, reads, place).expect(value, frozenset(accepted), shown) == "unknown":
                sound = False
                continue
            value = _folded(value)
            if own_rows and (reads_all_rows(value) or any(read.id in binder.scope.columns for read in names(value))):
                # No name of the language has a dot in it.
                column = f"{call.program}.{name}"
                given.append(ops.GivenColumn(column, wanted, value))
                values[name] = ast.Name(column, span=value.span)
                continue
            named = isinstance(value, ast.Name | ast.Path | ast.Template)
            if name in in_strings and not named and not is_fixed(value):
                message = (
                    f"`{call.program}` puts `{name}` into a string or reads a part of it, so it is not worked out here"
                )
                help = "give a value, a parameter or a string"
                binder.scope.error("QP231", message, value.span, f"`{format_expr(value)}`", help=help)
                sound = False
        else:
            value = replace(value, span=call.name_span)
        values[name] = value
    return values if sound else None


def _is_closed(binder: Binder, call: ast.Call, program: ast.Program, arguments: Mapping[str, ast.Argument]) -> bool:
    """Whether the called program leaves nothing open; else that is reported. Its open parameters may be given."""
    given = [param for param in program.params if isinstance(param.default, ast.Auto) and param.name in arguments]
    left = [param.name for param in program.params if isinstance(param.default, ast.Auto) and param not in given]
    if not left and not is_open(replace(program, params=())):
        return True
    message = f"`{call.program}` leaves it to a budget how it runs, and a program that is called has none of its own"
    help = f"give `{left[0]}`: a number, or `auto` for the budget of `{binder.program.name}`" if left else None
    binder.scope.error("QP255", message, call.name_span, "left open", help=help)
    return False


def _folded(expr: ast.Expr) -> ast.Expr:
    """The literal value of an expression without names; any other expression itself."""
    if isinstance(expr, (ast.Name, ast.Template)) or not is_fixed(expr):
        return expr
    value = evaluate(expr, {})
    return expr if value is None else spelt(value, expr.span)


def by_name(
    binder: Binder, callee: str, written: tuple[ast.Argument, ...], params: Sequence[str]
) -> dict[str, ast.Argument] | None:
    """The arguments by parameter name, positional ones in order; None where there is an error, which is reported."""
    arguments: dict[str, ast.Argument] = {}
    sound, named = True, False
    for index, argument in enumerate(written):
        name = argument.name
        if name is None:
            if named:
                message = "an argument without a name stands before those with one"
                binder.scope.error("QP231", message, argument.span, "give it a name, or move it")
                return None
            if index >= len(params):
                takes = f"{len(params)} argument{'' if len(params) == 1 else 's'}"
                message = f"`{callee}` takes {takes}, found {len(written)}"
                binder.scope.error("QP231", message, argument.span, "one too many")
                return None
            name = params[index]
        named = named or argument.name is not None
        span = Span(argument.span.start, argument.span.start + len(name)) if argument.name else argument.span
        if name not in params:
            notes = (f"parameters: {', '.join(params) or 'none'}",)
            fix = did_you_mean(name, params, span)
            message = f"`{callee}` has no parameter `{name}`"
            binder.scope.error("QP231", message, span, "unknown", notes=notes, **fix)
            sound = False
        elif name in arguments:
            binder.scope.error("QP231", f"`{name}` is given twice", span, "again here")
            sound = False
        else:
            arguments[name] = argument
    return arguments if sound else None
