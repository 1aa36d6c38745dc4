"""What operators read and make: expressions and the names in them, columns, and what a row holds besides columns.

A rule that changes what a row holds asks here who reads it. Columns are read by name (`reads`); the rest of a row,
which the runtime keeps for itself, by part (`state_access`). An operator without a line in `state_access` fails there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal as OneOf
from typing import get_args

from qpdsl.grammar import ast
from qpdsl.grammar.words import COLUMNS, FUNCTIONS
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import PhysicalOp, PhysicalPlan, everything
from qpdsl.planner.plan.rewrite import Chain, with_inner

Columns = frozenset[str]
# What a row holds besides its columns: its context, its path, and what was generated since the context was set. These
# are the fields of `Row` and `Generated` in the runtime.
Part = OneOf[
    "context",
    "path",
    "model",
    "tokens",
    "text",
    "finished",
    "logprob",
    "sampled",
    "incomplete",
    "invalid",
    "closed",
]
Parts = frozenset[Part]
PARTS: Parts = frozenset(get_args(Part))
GENERATED: Parts = PARTS - {"context", "path"}
# The columns that say something of what was generated.
GENERATED_COLUMNS: Columns = frozenset(COLUMNS) - {"group"}
_NOTHING: Parts = frozenset()
# What an operator reads only to add its own to it.
_ACCUMULATED: Mapping[type[ops.Operator], Parts] = {ops.Generate: frozenset({"logprob"})}


@dataclass(frozen=True, slots=True)
class StateAccess:
    """The parts of rows that an operator reads and those that it changes. A part that is only handed on is neither."""

    reads: Parts = _NOTHING
    changes: Parts = _NOTHING


def state_access(op: ops.Operator) -> StateAccess:
    """What an operator does to rows besides their columns, the operators inside it aside."""
    match op:
        case ops.SetContext():
            return StateAccess(frozenset({"context", "text", "sampled"}), PARTS - {"path"})
        case ops.Generate():
            return StateAccess(PARTS - {"incomplete", "invalid", "closed"}, PARTS - {"context"})
        case ops.Score(raw=raw):
            return StateAccess(frozenset({"context", "text", "closed"} if raw else {"context", "text"}))
        case ops.Judge() | ops.PythonScore():
            return StateAccess(frozenset({"context", "text"}))
        case ops.PythonExtract():
            return StateAccess(frozenset({"context", "text", "incomplete"}))
        case ops.Extract():
            return StateAccess(frozenset({"text", "incomplete"}))
        case ops.LogProb():
            return StateAccess(frozenset({"logprob", "sampled"}))
        case ops.TopK(like=like, per=per) if like is not None and per is not None:
            return StateAccess(frozenset({"finished", "text"}), frozenset({"finished", "closed"}))
        case ops.Split(by=by):
            return StateAccess(frozenset({"path", "finished"} if by is not None else {"path"}), frozenset({"path"}))
        case ops.Branch():
            return StateAccess(frozenset({"path"}), frozenset({"path"}))
        case ops.Call():
            return StateAccess(frozenset({"path"}))
        case ops.Return(parse=True):
            return StateAccess(frozenset({"incomplete", "invalid"}))
        case ops.Start() | ops.Where() | ops.TopK() | ops.Vote() | ops.Repeat() | ops.Peek() | ops.Return():
            return StateAccess()
    raise TypeError(f"nothing is said of what {type(op).__name__} does to rows")


def whole_state_access(node: PhysicalOp) -> StateAccess:
    """What an operator does to rows besides their columns, the operators inside it counted in.

    Rows inside a `call` are rows of their own, and those inside a `peek` are given up after it.
    """
    own = state_access(node.op)
    if isinstance(node.op, ops.Call):
        return own
    inside = [whole_state_access(inner) for chain in node.inside for inner in chain]
    changes = [] if isinstance(node.op, ops.Peek) else [state.changes for state in inside]
    return StateAccess(own.reads.union(*(state.reads for state in inside)), own.changes.union(*changes))


def parameter_expressions(op: ops.Operator) -> Iterator[ast.Expr]:
    """The expressions of an operator that read parameters only."""
    match op:
        case ops.Generate():
            options = (op.n, op.temperature, op.top_p, op.top_k, op.min_p, op.stop, op.max_tokens)
            yield from (value for value in options if value is not None)
            if op.via is not None:
                yield from (value for _, value in op.via.numbers)
        case ops.Judge(rubric=rubric):
            yield rubric
        case ops.TopK(k=k):
            yield k
        case ops.Split(count=count, temperature=temperature):
            yield count
            if temperature is not None:
                yield temperature
        case ops.Repeat(limit=limit):
            yield limit


def column_expressions(op: ops.Operator) -> Iterator[ast.Expr]:
    """The expressions of an operator that read columns too; `until` reads those that its body makes."""
    match op:
        case ops.SetContext(turns=turns, prompt=prompt):
            yield from (turn.content for turn in turns)
            if prompt is not None:
                yield prompt
        case ops.Score(given=given) | ops.Judge(given=given) | ops.PythonScore(given=given) if given is not None:
            yield given
        case ops.Where(condition=condition):
            yield condition
        case ops.TopK(by=by):
            yield by
        case ops.Split(by=by) if by is not None:
            yield by
        case ops.Vote(weight=weight) if weight is not None:
            yield weight
        case ops.Repeat(until=until) if until is not None:
            yield until
        case ops.Return(value=value):
            yield value


def inner_expressions(op: ops.Operator) -> Iterator[ast.Expr]:
    """The expressions of an operator over the rows that its body makes, of which nothing else comes out."""
    if isinstance(op, ops.Call):
        yield op.value


def named_columns(op: ops.Operator) -> Iterator[str]:
    """The columns that an operator reads by their names alone."""
    match op:
        case ops.Vote(column=column):
            yield column
        case ops.TopK(per=per) if per is not None:
            yield per


def made_column(op: ops.Operator) -> str | None:
    """The column that an operator adds, if it adds one."""
    match op:
        case ops.Score() | ops.Judge() | ops.LogProb() | ops.PythonScore() | ops.Generate():
            return op.into
        case ops.Call():
            return op.into
        case ops.Extract() | ops.PythonExtract():
            return op.column
    return None


def made_columns(op: ops.Operator, inside: Iterable[Iterable[str]]) -> Columns:
    """All columns that an operator adds to those of the rows it reads.

    `inside` are the columns of the rows at the end of each chain of operators inside it.
    """
    column = made_column(op)
    own = () if column is None else (column,)
    if isinstance(op, ops.Call):
        return frozenset(own)
    return frozenset().union(own, COLUMNS if isinstance(op, ops.SetContext) else (), *inside)


def names(expr: ast.Expr) -> Iterator[ast.Name]:
    """Every name that an expression reads, in reading order."""
    match expr:
        case ast.Name():
            yield expr
        case ast.Template(parts=parts):
            yield from (part for part in parts if isinstance(part, ast.Name))
        case ast.Unary(operand=operand):
            yield from names(operand)
        case ast.Binary(left=left, right=right):
            yield from names(left)
            yield from names(right)
        case ast.Matches(subject=subject):
            yield from names(subject)
        case ast.Apply(args=args):
            for arg in args:
                yield from names(arg)


def is_fixed(expr: ast.Expr) -> bool:
    """Whether an expression reads no name and can be worked out, even where it holds an error."""
    match expr:
        case ast.Name() | ast.Matches():
            return False
        case ast.Template(parts=parts):
            return all(isinstance(part, str) for part in parts)
        case ast.Unary(operand=operand):
            return is_fixed(operand)
        case ast.Binary(left=left, right=right):
            return is_fixed(left) and is_fixed(right)
        case ast.Apply(function=function, args=args):
            return function in FUNCTIONS and bool(args) and all(is_fixed(arg) for arg in args)
    return True


def reads(node: PhysicalOp) -> Columns:
    """The columns that an operator reads of the rows it gets, those inside it aside.

    A Python function can ask for all columns of a row, and whether it does is not known before it runs. A column that
    is there already stays in rows that a `generate` passes as they are, and in those that a raw `score` finds closed.
    """
    op = node.op
    if isinstance(op, (ops.PythonScore, ops.PythonExtract)):
        return frozenset(node.columns)
    expressions = {name.id for expr in column_expressions(op) for name in names(expr)}
    made = made_column(op)
    stays = isinstance(op, ops.Generate) or (isinstance(op, ops.Score) and op.raw)
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
    return frozenset(names_read & set(node.body[-1].columns)) if node.body else frozenset()


def reported(plan: PhysicalPlan) -> Columns:
    """The columns of the last rows that somebody looks at when the program has run, its value aside."""
    last = plan.ops[-1].columns
    return frozenset(last if plan.reads is None else set(plan.reads) & set(last))


def reads_logprobs(plan: PhysicalPlan) -> bool:
    """Whether an operator, or whoever looks at the last rows, reads a log-probability of generated text."""
    return "logprob" in reported(plan) or any(
        "logprob" in state_access(node.op).reads - _ACCUMULATED.get(type(node.op), _NOTHING)
        or "logprob" in reads(node) | inner_reads(node)
        for node in everything(plan.ops)
    )


def with_columns(chain: Chain, before: Mapping[str, str]) -> Chain:
    """The operators with the columns that they have now, where the first gets those of `before`."""
    nodes: list[PhysicalOp] = []
    for node in chain:
        body = with_columns(node.body, {} if isinstance(node.op, ops.Call) else before)
        arms = tuple(with_columns(arm, before) for arm in node.arms)
        node = with_inner(node, body, arms)
        left = before.keys() | made_columns(node.op, [inner[-1].columns for inner in node.inside if inner])
        columns = {name: type_ for name, type_ in node.columns.items() if name in left}
        if len(columns) < len(node.columns):
            node = replace(node, columns=columns)
        nodes.append(node)
        before = node.columns
    return tuple(nodes)
