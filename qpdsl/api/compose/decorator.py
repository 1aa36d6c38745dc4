"""`@qp.program`: a Python function that composes stages, turned into a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import update_wrapper
from types import FunctionType
from typing import Any, ParamSpec, TypeVar, overload
from typing import Literal as OneOf

from qpdsl.api.call_sites import PythonFile
from qpdsl.api.compose.python_errors import pythonic
from qpdsl.api.compose.signature import Signature
from qpdsl.api.compose.stage_call import StageCall
from qpdsl.api.compose.stages import Rows
from qpdsl.api.compose.symbols import Symbol, convert
from qpdsl.api.compose.targets import Draft, Model, Within
from qpdsl.api.composition import Composition, PythonFiles
from qpdsl.api.program import Program
from qpdsl.api.syntax_trees import NOWHERE
from qpdsl.errors import naming_keywords
from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import QpError
from qpdsl.grammar.source import Span
from qpdsl.grammar.suggest import listed
from qpdsl.grammar.words import BUDGET_UNITS, SYSTEMS, BudgetUnit
from qpdsl.sources.surroundings import environment

System = OneOf["search_and_learn"]
P = ParamSpec("P")
R = TypeVar("R")


@overload
def program(function: Callable[P, R], /) -> Program[P, R]: ...
@overload
def program(
    *,
    name: str | None = None,
    within: Within | None = None,
    latency: float | None = None,
    draft: Draft | Model | str | OneOf[False] | None = None,
    like: System | None = None,
    budget: Mapping[BudgetUnit, float] | None = None,
) -> Callable[[Callable[P, R]], Program[P, R]]: ...
@naming_keywords
def program(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    within: Within | None = None,
    latency: float | None = None,
    draft: Draft | Model | str | OneOf[False] | None = None,
    like: System | None = None,
    budget: Mapping[BudgetUnit, float] | None = None,
) -> Any:
    """Turns a function that composes stages into a program; the function runs once, now.

    Its parameters are the program's: `str`, `int`, `float`, `bool`, `Literal[…]`, lists, dataclasses and pydantic
    models, `qp.Messages` and `qp.Model`; with `| None` they may be None. What it returns is what the program gives
    back, as a value of its return annotation. `within` says how far a plan may go (`qp.exact`, `qp.epsilon(…)`,
    `qp.loss(…)`), `latency` how much time counts against quality, and `draft` says what proposes tokens, as at
    `generate`. `like` takes over another system's conventions. `budget` is what a problem may take on average, of a
    program that leaves arms or widths open: `{"tokens": 2000}`, `{"seconds": 1.5}` or `{"cost": 0.002}`. Raises
    QpError.
    """
    options = ProgramOptions(name, within, latency, draft, like, budget)
    if function is None:
        return lambda function: _program(function, options)
    return _program(function, options)


@dataclass(frozen=True)
class ProgramOptions:
    """The options of the decorator."""

    name: str | None
    within: Within | None
    latency: float | None
    draft: Draft | Model | str | OneOf[False] | None
    like: System | None
    budget: Mapping[BudgetUnit, float] | None


def _program(function: Callable[..., Any], options: ProgramOptions) -> Program[..., Any]:
    if not isinstance(function, FunctionType):
        raise TypeError(f"`@qp.program` takes a function, not {function!r}")
    composition = Composition(PythonFile.of(function.__code__))
    signature = Signature(function, composition)
    with composition.active():
        syntax = _syntax(function, signature, composition, options)
    file = ast.File(
        composition.file.source,
        tuple(composition.models.values()),
        (*composition.programs.values(), syntax),
        tuple(composition.schemas.values()),
        tuple(composition.uses),
        errors=tuple(composition.faults),
        span=signature.span,
    )
    files = PythonFiles.beside(composition.file.folder, composition.texts)
    functions = composition.functions
    try:
        composed: Program[..., Any] = Program(
            file, syntax.name, environment(files, functions), functions, signature.result, composed=True
        )
    except QpError as error:
        raise pythonic(error) from None
    update_wrapper(composed, function, updated=())
    return composed


def _budget(call: StageCall, budget: Mapping[BudgetUnit, float]) -> ast.Budget:
    """The budget of a program. Raises QpError."""
    span = call.place("budget")
    amounts = [(unit, budget[unit]) for unit in BUDGET_UNITS if unit in budget]
    if len(budget) != 1 or not amounts:
        message = f"a budget is one amount of {listed(BUDGET_UNITS)}"
        raise call.composition.refuse("QP142", message, span, help='write `budget={"tokens": 2000}`')
    ((unit, amount),) = amounts
    if type(amount) not in (int, float) or not 0 < amount < float("inf"):
        raise call.composition.refuse("QP301", "a budget is a number over 0", span)
    return ast.Budget(unit, float(amount), span=span)


def _syntax(
    function: Callable[..., Any], signature: Signature, composition: Composition, options: ProgramOptions
) -> ast.Program:
    """Runs the function over symbols, and gives the program that it composed. Raises QpError."""
    call = StageCall(composition, composition.file.here())
    name = composition.name(options.name or function.__name__, signature.name_span, "a program's name")
    draft = call.draft(options.draft)
    params = signature.params()
    returned = function(**{param.name: _argument(param, composition) for param in params})
    for what, span in composition.unopened:
        help = "its stages stand in a `with` block of its own"
        raise composition.refuse("QP504", f"{what} runs nothing as it stands", span, help=help)
    (body,) = composition.blocks
    if not body:
        raise composition.refuse("QP121", f"program `{name}` has no stages", signature.name_span)
    value = _returned(returned, body, signature.return_span, composition)
    if value is not None:
        body.append(ast.Return(value, span=signature.return_span))
    within, latency = options.within, options.latency
    return ast.Program(
        name,
        params,
        signature.returns(),
        tuple(body),
        None if within is None else ast.Within(within.level, within.bound, span=call.place("within")),
        None if latency is None else ast.Prefer(latency, span=call.place("latency")),
        draft,
        None if options.like is None else _like(call, options.like),
        None if options.budget is None else _budget(call, options.budget),
        span=signature.span,
        name_span=signature.name_span,
    )


def _argument(param: ast.Param, composition: Composition) -> Symbol | Model:
    """What the function gets for a parameter while it is composed."""
    if isinstance(param.type, ast.TypeRef) and param.type.name == "model":
        model = Model("", param.name)
        composition.model_params[param.name] = model
        return model
    return Symbol(ast.Name(param.name, span=NOWHERE))


def _like(call: StageCall, system: System) -> ast.Like:
    return ast.Like(call.word("like", system, SYSTEMS, "QP124"), span=call.place("like"))


def _returned(value: object, body: list[ast.Stage], span: Span, composition: Composition) -> ast.Expr | None:
    """The expression that the program returns, None where it would return the same without a `return`."""
    if value is None or isinstance(value, Rows):
        return None
    expr = convert(value, span)
    last = body[-1]
    implied = last.column.id if isinstance(last, ast.Vote) else "text"
    return None if isinstance(expr, ast.Name) and expr.id == implied else expr
