"""`@qp.program`: a Python function that composes stages, turned into a program."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial, update_wrapper
from types import FunctionType
from typing import Any, ParamSpec, TypeVar, overload
from typing import Literal as OneOf

from qpdsl.api.call_sites import PythonFile
from qpdsl.api.compose.signature import Signature
from qpdsl.api.compose.stage_call import StageCall
from qpdsl.api.compose.stages import Rows
from qpdsl.api.compose.symbols import Symbol, convert
from qpdsl.api.compose.targets import DraftTarget, Model, Permission
from qpdsl.api.composition import Composition, PythonFiles
from qpdsl.api.program import Program
from qpdsl.api.syntax_trees import NOWHERE
from qpdsl.errors import naming_keywords
from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import Diagnostic, QpError
from qpdsl.grammar.source import Span
from qpdsl.grammar.suggest import listed
from qpdsl.grammar.words import BUDGET_UNITS, DEFAULT_UNIT, SYSTEMS, BudgetKey
from qpdsl.session.surroundings import Surroundings

System = OneOf["search_and_learn"]
P = ParamSpec("P")
R = TypeVar("R")
_WORD = re.compile(r"[A-Za-z_]\w*")
# Spellings of `.qp` text in help, and how Python spells the same.
_SPELLINGS = tuple(
    (re.compile(text), python)
    for text, python in (
        (r"`score (\w+) into (\w+)`", r'`rows.score(\1, into="\2")`'),
        (r"`score (\w+)`", r"`rows.score(\1)`"),
        (r"`extract (\w+) = /regex/`", r'`rows.extract("\1", r"…")`'),
        (r"`generate … as (\w+)`", r"`rows.generate(…, as_=\1)`"),
        (r"`reduce=(\w+)`", r'`reduce="\1"`'),
        (r"`(all|any|max|mean|min)\(", r"`qp.\1("),
        (r"`-> text`", "`-> str`"),
        (r"`call (\w+)\(…\) into NAME depth=…`", r'`rows.call_into("NAME", qp.itself(depth=…), …)`'),
    )
)


@overload
def program(function: Callable[P, R], /) -> Program[P, R]: ...
@overload
def program(
    *,
    name: str | None = None,
    within: Permission | None = None,
    latency: float | None = None,
    draft: DraftTarget | Model | str | OneOf[False] | None = None,
    like: System | None = None,
    budget: Mapping[BudgetKey, float] | None = None,
    deadline: float | None = None,
) -> Callable[[Callable[P, R]], Program[P, R]]: ...
@naming_keywords
def program(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    within: Permission | None = None,
    latency: float | None = None,
    draft: DraftTarget | Model | str | OneOf[False] | None = None,
    like: System | None = None,
    budget: Mapping[BudgetKey, float] | None = None,
    deadline: float | None = None,
) -> Any:
    """Turns a function that composes stages into a program; the function runs once, now.

    Its parameters are the program's: `str`, `int`, `float`, `bool`, `Literal[…]`, lists, dataclasses and pydantic
    models, `qp.Messages` and `qp.Model`; with `| None` they may be None. What it returns is what the program gives
    back, as a value of its return annotation. `within` says how far a plan may go (`qp.exact`, `qp.epsilon(…)`,
    `qp.loss(…)`), `latency` how much time counts against quality, and `draft` says what proposes tokens, as at
    `generate`. `like` takes over another system's conventions. `budget` is what a problem may take on average, of a
    program that leaves arms or widths open: `{"tokens": 2000}`, `{"seconds": 1.5}` or `{"cost": 0.002}`; or the least
    that has a share right, `{"accuracy": 0.9}`, with a `"delta"`, and an amount to give it up for. In `deadline`
    seconds a run is to be done, and goes before others that have more time. Raises QpError.
    """
    aims = partial(_program, within=within, latency=latency, budget=budget, deadline=deadline)
    composed = partial(aims, name=name, draft=draft, like=like)
    return composed if function is None else composed(function)


def _program(function: Callable[..., Any], **options: Any) -> Program[..., Any]:
    if not isinstance(function, FunctionType):
        raise TypeError(f"`@qp.program` takes a function, not {function!r}")
    composition = Composition(PythonFile.of(function.__code__))
    signature = Signature(function, composition)
    with composition.active():
        syntax = _syntax(function, signature, composition, **options)
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
    known = Surroundings(functions=functions).with_files(files)
    try:
        composed: Program[..., Any] = Program(file, syntax.name, known, functions, signature.result, composed=True)
    except QpError as error:
        raise _pythonic(error) from None
    update_wrapper(composed, function, updated=())
    return composed


def _budget(call: StageCall, budget: Mapping[BudgetKey, float]) -> ast.Budget:
    """The budget of a program. Raises QpError."""
    span = call.place("budget")
    shares = {key: budget[key] for key in ("accuracy", "delta") if key in budget}
    amounts = [(unit, budget[unit]) for unit in BUDGET_UNITS if unit in budget]
    aimed = "accuracy" in shares
    if len(shares) + len(amounts) != len(budget) or len(amounts) > 1 or (not aimed and (shares or not amounts)):
        message = f"a budget is one amount of {listed(BUDGET_UNITS)}, or a share of right answers"
        help = 'write `budget={"tokens": 2000}`, or `budget={"accuracy": 0.9}` with or without an amount'
        raise call.composition.refuse("QP142", message, span, help=help)
    if any(type(share) is not float or not 0 < share < 1 for share in shares.values()):
        raise call.composition.refuse("QP301", f"{listed(shares, last='and')} lie between 0 and 1", span)
    for unit, amount in amounts:
        if type(amount) not in (int, float) or not 0 < amount < float("inf"):
            raise call.composition.refuse("QP301", "a budget is a number over 0", span)
        return ast.Budget(unit, float(amount), **shares, span=span)
    return ast.Budget(DEFAULT_UNIT, None, **shares, span=span)


def _deadline(call: StageCall, seconds: float) -> ast.Deadline:
    """The deadline of a program. Raises QpError."""
    span = call.place("deadline")
    if type(seconds) not in (int, float) or not 0 < seconds < float("inf"):
        raise call.composition.refuse("QP301", "a deadline is a number of seconds over 0", span)
    return ast.Deadline(float(seconds), span=span)


def _syntax(
    function: Callable[..., Any],
    signature: Signature,
    composition: Composition,
    *,
    name: str | None,
    within: Permission | None,
    latency: float | None,
    draft: DraftTarget | Model | str | OneOf[False] | None,
    like: System | None,
    budget: Mapping[BudgetKey, float] | None,
    deadline: float | None,
) -> ast.Program:
    """Runs the function over symbols, and gives the program that it composed. Raises QpError."""
    call = StageCall(composition, composition.file.here())
    name = composition.program = composition.name(name or function.__name__, signature.name_span, "a program's name")
    drafts = call.draft(draft)
    params = signature.params()
    try:
        returned = function(**{param.name: _argument(param, composition) for param in params})
    except NameError as error:
        # While a function runs under its decorator nothing has its name yet.
        if error.name != function.__name__:
            raise
        raise composition.calls_itself(signature.itself_span) from None
    for what, span in composition.unopened:
        help = "its stages stand in a `with` block of its own"
        raise composition.refuse("QP504", f"{what} runs nothing as it stands", span, help=help)
    (body,) = composition.blocks
    if not body:
        raise composition.refuse("QP121", f"program `{name}` has no stages", signature.name_span)
    value = _returned(returned, body, signature.return_span, composition)
    if value is not None:
        body.append(ast.Return(value, span=signature.return_span))
    return ast.Program(
        name,
        params,
        signature.returns(),
        tuple(body),
        None if within is None else ast.Within(within.level, within.bound, span=call.place("within")),
        None if latency is None else ast.Prefer(latency, span=call.place("latency")),
        drafts,
        None if like is None else ast.Like(call.word("like", like, SYSTEMS, "QP124"), span=call.place("like")),
        None if budget is None else _budget(call, budget),
        None if deadline is None else _deadline(call, deadline),
        signature.optional,
        span=signature.span,
        name_span=signature.name_span,
    )


def _argument(param: ast.Param, composition: Composition) -> Symbol | Model:
    """What the function gets for a parameter while it is composed."""
    argument = Symbol(ast.Name(param.name, span=NOWHERE))
    type_ = param.type.item if isinstance(param.type, ast.ListType) else param.type
    if not isinstance(type_, ast.TypeRef) or type_.name != "model":
        return argument
    given = argument if type_ is not param.type else Model("", param.name)
    composition.model_params[param.name] = given
    return given


def _returned(value: object, body: list[ast.Stage], span: Span, composition: Composition) -> ast.Expr | None:
    """The expression that the program returns, None where it would return the same without a `return`."""
    if value is None or isinstance(value, Rows):
        return None
    if isinstance(value, tuple):
        help = 'several values are a record: `return {"NAME": value, …}`'
        raise composition.refuse("QP502", "a program has one result", span, help=help)
    expr = convert(value, span)
    last = body[-1]
    implied = last.column.id if isinstance(last, ast.Vote) else "text"
    return None if isinstance(expr, ast.Name) and expr.id == implied else expr


def _pythonic(error: QpError) -> QpError:
    """The error without what shows `.qp` text: the forms of stages, and edits that are more than another name."""
    return QpError([_pythonic_diagnostic(diagnostic) for diagnostic in error.diagnostics], error.source)


def _pythonic_diagnostic(diagnostic: Diagnostic) -> Diagnostic:
    notes = tuple(note for note in diagnostic.notes if not note.startswith("form: "))
    help, edit = diagnostic.help, diagnostic.edit
    for text, python in _SPELLINGS:
        help = help and text.sub(python, help)
    if edit is not None and not _WORD.fullmatch(edit.text):
        edit = None
    elif edit is not None and diagnostic.code == "QP214" and edit.text == "text":
        edit = replace(edit, text="str")
    return replace(diagnostic, notes=notes, help=help, edit=edit)
