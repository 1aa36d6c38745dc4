"""What operators read and make: expressions and the names in them, columns, and what a row holds besides columns.

A rule that changes what a row holds asks here who reads it. Columns are read by name (`reads`), as the fields of an
operator declare; the rest of a row, which the runtime keeps for itself, by part (`state_access`).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeGuard, get_args

from qpdsl.grammar import ast
from qpdsl.grammar.ast.walk import children, made_column, walk
from qpdsl.grammar.words import AGGREGATES, COLUMNS, COMPARED, FUNCTIONS, OF_EACH, SEARCHED_COLUMNS
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.evaluate import Scope, evaluate
from qpdsl.planner.plan.logical import LogicalOp
from qpdsl.planner.plan.physical import PhysicalOp, PhysicalPlan, everything
from qpdsl.planner.plan.rule import Chain, with_inner
from qpdsl.planner.values.library import OF_SEVERAL
from qpdsl.planner.values.value import Value

Columns = frozenset[str]
# What a row holds besides its columns: its context, its path, and what was generated since the context was set. These
# are the fields of `Row` and `Generated` in the runtime.
Part = Literal[
    "context",
    "path",
    "model",
    "tokens",
    "text",
    "finished",
    "logprob",
    "sampled",
    "least",
    "figures",
    "said",
    "incomplete",
    "invalid",
    "closed",
    "thought",
    "written",
    "tools",
    "call",
]
Parts = frozenset[Part]
PARTS: Parts = frozenset(get_args(Part))
GENERATED: Parts = PARTS - {"context", "path"}
# The columns that say something of what was generated.
GENERATED_COLUMNS: Columns = frozenset(COLUMNS) - {"group"}
_NOTHING: Parts = frozenset()
# What an operator reads only to add its own to it.
_ACCUMULATED: Mapping[type[ops.Operator], Parts] = {ops.Generate: frozenset({"logprob", "least", "figures", "written"})}


@dataclass(frozen=True, slots=True)
class StateAccess:
    """The parts of rows that an operator reads and those that it changes. A part that is only handed on is neither."""

    reads: Parts = _NOTHING
    changes: Parts = _NOTHING


_SETS: StateAccess = StateAccess(
    frozenset({"context", "text", "sampled", "thought", "written"}), PARTS - {"path", "written"}
)
# What a `generate` goes on from after a `say` are other tokens.
_SAYS = StateAccess(
    frozenset({"text", "said", "thought"}), GENERATED - {"model", "logprob", "sampled", "least", "figures", "written"}
)
_ASKS = StateAccess(frozenset({"context", "text"}))
_OF_TEXT = StateAccess(frozenset({"text"}))
_PATH: Parts = frozenset({"path"})
# What chance depends on.
_KEY: Parts = frozenset({"context", "path"})
# What operators do to rows besides their columns; of others that declare what becomes of the rows: nothing.
_ACCESS: Mapping[type[ops.Operator], StateAccess] = {
    ops.Prompt: _SETS,
    ops.Chat: _SETS,
    ops.Say: _SAYS,
    ops.Generate: StateAccess(PARTS - {"incomplete", "invalid", "closed"}, PARTS - {"context"}),
    ops.StepScore: _ASKS,
    ops.Judge: _ASKS,
    ops.PythonScore: _ASKS,
    ops.ValidJson: _OF_TEXT,
    ops.Passes: _OF_TEXT,
    ops.PythonExtract: StateAccess(frozenset({"context", "text", "incomplete"})),
    ops.Extract: StateAccess(frozenset({"text", "incomplete"})),
    ops.LogProb: StateAccess(frozenset({"logprob", "sampled", "least", "written"})),
    ops.DrawScore: StateAccess(frozenset({"figures", "thought", "written"})),
    ops.Split: StateAccess(_PATH, _PATH),
    ops.Branch: StateAccess(_PATH, _PATH),
    ops.Each: StateAccess(_PATH, _PATH),
    ops.Search: StateAccess(frozenset({"path", "finished"}), _PATH),
    ops.Call: StateAccess(_PATH),
    ops.Tool: StateAccess(_PATH),
    ops.Ask: StateAccess(_PATH),
    ops.Repeat: StateAccess(),
    ops.If: StateAccess(),
}


def state_access(op: ops.Operator) -> StateAccess:
    """What an operator does to rows besides their columns, the operators inside it aside."""
    access = _declared_access(op)
    return replace(access, reads=access.reads | _KEY) if draws(op) else access


def draws(op: ops.Operator) -> bool:
    """Whether an operator leaves something to chance that is no token."""
    return (isinstance(op, ops.Split) and op.draw is not None) or any(
        isinstance(node, ast.Apply) and node.function == "random"
        for expr in column_expressions(op)
        for node in walk(expr)
    )


def _declared_access(op: ops.Operator) -> StateAccess:
    match op:
        # What follows a call stands behind the tokens of the call.
        case ops.Chat(turns=turns) if any(turn.role == "tool" for turn in turns):
            return replace(_SETS, reads=PARTS)
        case ops.StepScore(raw=True):
            return StateAccess(frozenset({"context", "text", "closed"}))
        case ops.Keep(like=str(), per=ast.Name()):
            return StateAccess(frozenset({"finished", "text"}), frozenset({"finished", "closed"}))
        case ops.Repeat(gather="gather"):
            return StateAccess(_PATH, _PATH)
        case ops.Split(by=by) if by is not None:
            return StateAccess(frozenset({"path", "finished"}), _PATH)
        case ops.Each(source=ast.JsonPath()):
            return StateAccess(frozenset({"path", "text", "incomplete"}), _PATH)
        case ops.PythonExtract(columns=tuple()):
            return StateAccess()
        case ops.Extract(of=of) | ops.PythonExtract(of=of) if of is not None:
            return StateAccess(frozenset({"context"}) if isinstance(op, ops.PythonExtract) else _NOTHING)
        case ops.Return(parse=True):
            return StateAccess(frozenset({"incomplete", "invalid"}))
    if type(op) not in _ACCESS and op.rows == "other":
        raise TypeError(f"nothing is said of what {op.operator} does to rows")
    return _ACCESS.get(type(op), StateAccess())


def whole_state_access(node: PhysicalOp) -> StateAccess:
    """What an operator does to rows besides their columns, the operators inside it counted in.

    Rows inside a `call` or an `ask` are rows of their own, and those inside a `peek` are given up after it.
    """
    own = state_access(node.op)
    if isinstance(node.op, ops.Call | ops.Ask):
        return own
    inside = [whole_state_access(inner) for chain in node.inside for inner in chain]
    changes = [] if isinstance(node.op, ops.Peek) else [state.changes for state in inside]
    return StateAccess(own.reads.union(*(state.reads for state in inside)), own.changes.union(*changes))


def parameter_expressions(op: ops.Operator) -> Iterator[ast.Expr]:
    """The expressions of an operator that read parameters only."""
    yield from (value for value, part, owner in ast.values(op) if part.reads_of(owner) == "parameters")
    if isinstance(op, ops.PythonScore | ops.PythonExtract):
        yield from (value for _, value in op.arguments)


def column_expressions(op: ops.Operator) -> Iterator[ast.Expr]:
    """The expressions of an operator that read columns too; `until` and a search read those that its body makes."""
    for value, part, owner in ast.values(op):
        if part.reads_of(owner) != "parameters" and not isinstance(value, ast.JsonPath):
            yield value
    if isinstance(op, ops.Call | ops.PythonExtract | ops.Tool):
        yield from (column.value for column in op.columns or ())


def inner_expressions(op: ops.Operator) -> Iterator[ast.Expr]:
    """The expressions of an operator over the rows that its body makes, of which nothing else comes out."""
    if isinstance(op, ops.Call):
        yield from (value for value in (op.value, op.otherwise) if value is not None)


def named_columns(op: ops.Operator) -> Iterator[str]:
    """The columns that an operator reads by their names alone."""
    for name, part in ast.parts(type(op)):
        if part.kind == "column" and (column := getattr(op, name)) is not None:
            yield column.id
    if isinstance(op, ops.PythonScore | ops.PythonExtract):
        yield from op.asks
    elif isinstance(op, ops.Tool) and op.columns is None:
        yield op.name.id
    elif isinstance(op, ops.Tournament):
        yield from compared_columns(op.question)


def compared_columns(question: ast.Template) -> Iterator[str]:
    """The columns that `compare` shows of two rows: `{a.text}` and `{b.text}` name the column `text`."""
    for part in question.parts:
        if isinstance(part, ast.Path) and part.base.id in COMPARED and isinstance(part.steps[0], str):
            yield part.steps[0]


def made_columns(op: ops.Operator, inside: Iterable[Iterable[str]]) -> Columns:
    """All columns that an operator adds to those of the rows it reads.

    `inside` are the columns of the rows at the end of each chain of operators inside it.
    """
    column = made_column(op)
    own = () if column is None else (column,)
    if isinstance(op, ops.Call):
        return frozenset(own)
    if isinstance(op, ops.Ask):
        return frozenset().union(*inside) - frozenset(COLUMNS)
    searched = SEARCHED_COLUMNS if isinstance(op, ops.Search) else ()
    return frozenset().union(own, searched, COLUMNS if isinstance(op, ops.SetContext) else (), *inside)


def made_by(chain: Iterable[PhysicalOp]) -> Columns:
    """All columns that the operators of a chain make of its rows, those inside them counted in."""
    made: set[str] = set()
    for node in chain:
        inside = () if isinstance(node.op, ops.Call) else node.inside
        made.update(made_columns(node.op, map(made_by, inside)))
    return frozenset(made)


def columns_inside(op: ops.Operator, before: Mapping[str, str]) -> Mapping[str, str]:
    """The columns of the rows that the operators inside this one begin with, where it gets those of `before`."""
    match op:
        case ops.Call(columns=given):
            return {column.name: column.type for column in given}
        case ops.Each(column=column, type=type_):
            return {**{name: known for name, known in before.items() if name != column.id}, column.id: type_}
    return before


def last_columns(chain: Sequence[LogicalOp | PhysicalOp], before: Mapping[str, str]) -> Mapping[str, str]:
    """The columns of the rows at the end of a chain of operators, where it gets those of `before`."""
    return chain[-1].columns if chain else before


def own_names(op: ops.Operator) -> Columns:
    """The names that an operator itself gives a value in its expressions: the number of a row that is joined."""
    return frozenset(name for _, part, _ in ast.values(op) for name in part.own)


def names(expr: ast.Expr) -> Iterator[ast.Name]:
    """Every name that an expression reads, in reading order."""
    return (node for node in walk(expr) if isinstance(node, ast.Name))


def _is_aggregate(node: ast.Node) -> TypeGuard[ast.Apply]:
    """Whether it looks at all rows: `min` and `max` of several values look at one."""
    if not isinstance(node, ast.Apply) or node.function not in AGGREGATES:
        return False
    return node.function not in OF_SEVERAL or len(node.args) < 2


def reads_all_rows(expr: ast.Expr) -> bool:
    """Whether an aggregate stands in an expression, so that its value for a row depends on the other rows."""
    return any(_is_aggregate(node) for node in walk(expr))


def value_ahead(expr: ast.Expr | None, values: Scope) -> Value:
    """The value of an option as far as it is known before a run: none where it looks at rows."""
    return None if expr is None or reads_all_rows(expr) else evaluate(expr, values)


def most_ahead(expr: ast.Expr, rows: float | None, values: Scope) -> float | None:
    """The most of `rows` rows that a count of them comes to, as far as it is known before a run.

    What looks at all rows is bounded by how many there are, `min` of several values by the least bound that is known.
    """
    if not reads_all_rows(expr):
        value = evaluate(expr, values)
        return float(value) if isinstance(value, int | float) else None
    if not isinstance(expr, ast.Apply) or expr.function not in OF_SEVERAL or len(expr.args) < 2:
        return rows
    bounds = [most_ahead(arg, rows, values) for arg in expr.args]
    known = [bound for bound in bounds if bound is not None]
    if expr.function == "min":
        return min(known, default=None)
    return max(known) if len(known) == len(bounds) else None


def outlives_rows(expr: ast.Expr, params: Container[str]) -> bool:
    """Whether an expression looks at all rows and at none in particular: of no rows it has a value too."""
    return reads_all_rows(expr) and not _reads_a_row(expr, params)


def _reads_a_row(expr: ast.Node, params: Container[str]) -> bool:
    """Whether an expression reads a column outside of aggregates."""
    if _is_aggregate(expr):
        return expr.function in OF_EACH
    read = isinstance(expr, ast.Name) and expr.id not in params
    return read or any(_reads_a_row(child, params) for child in children(expr))


def is_same_for_all(expr: ast.Expr, params: Container[str]) -> bool:
    """Whether an expression reads no column and looks at no rows, so that it has one value for all of them."""
    return all(name.id in params for name in names(expr)) and not any(isinstance(n, ast.Apply) for n in walk(expr))


def varies(expr: ast.Node, columns: Container[str]) -> bool:
    """Whether the value of an expression may differ from row to row, where rows have these columns."""
    if _is_aggregate(expr):
        return expr.per is not None or expr.function in OF_EACH
    if isinstance(expr, ast.Name):
        return expr.id in columns
    return any(varies(child, columns) for child in children(expr))


def is_fixed(expr: ast.Node) -> bool:
    """Whether an expression reads no name and can be worked out, even where it holds an error."""
    if isinstance(expr, ast.Name | ast.Path | ast.Matches):
        return False
    if isinstance(expr, ast.Apply):
        # `count` and `sum` depend on how many rows there are.
        of_rows = expr.function in ("count", "sum", *OF_EACH) or expr.per is not None
        if of_rows or expr.function not in FUNCTIONS or not expr.args:
            return False
    return all(map(is_fixed, children(expr)))


def reads(node: PhysicalOp) -> Columns:
    """The columns that an operator reads of the rows it gets, those inside it aside.

    A Python function can ask for all columns of a row. A column that is there already stays in rows that a `generate`
    passes as they are, and in those that a raw `score` finds closed.
    """
    op = node.op
    if isinstance(op, (ops.PythonScore, ops.PythonExtract)) and op.row:
        return frozenset(node.columns)
    expressions = {name.id for expr in column_expressions(op) for name in names(expr)} - own_names(op)
    made = made_column(op)
    stays = isinstance(op, ops.Generate) or (isinstance(op, ops.StepScore) and op.raw)
    own = {made} if made is not None and stays else set()
    return frozenset({*expressions, *named_columns(op), *own} & set(node.columns))


def all_reads(node: PhysicalOp) -> Columns:
    """The columns that an operator reads of the rows it gets, those that the operators inside it read counted in."""
    if isinstance(node.op, ops.Call):  # the rows inside it are rows of their own
        return reads(node)
    return reads(node).union(*(all_reads(inner) for chain in node.inside for inner in chain))


def inner_reads(node: PhysicalOp) -> Columns:
    """The columns that an operator reads of the rows that its body makes, of which nothing else comes out."""
    names_read = {name.id for expr in inner_expressions(node.op) for name in names(expr)}
    return frozenset(names_read & set(last_columns(node.body, columns_inside(node.op, {}))))


def reported(plan: PhysicalPlan) -> Columns:
    """The columns of the last rows that somebody looks at when the program has run, its value aside."""
    last = plan.ops[-1].columns
    return frozenset(last if plan.reads is None else set(plan.reads) & set(last))


def reads_logprobs(plan: PhysicalPlan) -> bool:
    """Whether an operator, or whoever looks at the last rows, reads a log-probability of generated text."""
    return "logprob" in reported(plan) or asks_for_logprobs(plan)


def asks_for_logprobs(plan: PhysicalPlan) -> bool:
    """The same, but where somebody looks at all columns of the last rows only if an operator reads it."""
    return "logprob" in (plan.reads or ()) or any(
        "logprob" in state_access(node.op).reads - _ACCUMULATED.get(type(node.op), _NOTHING)
        or "logprob" in reads(node) | inner_reads(node)
        for node in everything(plan.ops)
    )


def reads_figures(chain: Chain) -> bool:
    """Whether an operator reads what is told of draws besides their log-probabilities, or ends rows by it."""
    return any(
        isinstance(node.op, ops.DrawScore) or (isinstance(node.op, ops.Generate) and node.op.until is not None)
        for node in everything(chain)
    )


def with_columns(chain: Chain, before: Mapping[str, str]) -> Chain:
    """The operators with the columns that they have now, where the first gets those of `before`."""
    nodes: list[PhysicalOp] = []
    for node in chain:
        body = with_columns(node.body, columns_inside(node.op, before))
        arms = tuple(with_columns(arm, before) for arm in node.arms)
        node = with_inner(node, body, arms)
        left = before.keys() | made_columns(node.op, [inner[-1].columns for inner in node.inside if inner])
        if not node.columns.keys() <= left:
            node = replace(node, columns={name: type_ for name, type_ in node.columns.items() if name in left})
        nodes.append(node)
        before = node.columns
    return tuple(nodes)
