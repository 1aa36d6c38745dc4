"""What operators read and make: expressions and the names in them, columns, and what a row holds besides columns.

A rule that changes what a row holds asks here who reads it. Columns are read by name (`reads`); the rest of a row,
which the runtime keeps for itself, by part (`state_access`). An operator without a line in `state_access` fails there.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal as OneOf
from typing import TypeGuard, get_args

from qpdsl.grammar import ast
from qpdsl.grammar.ast.walk import children, walk
from qpdsl.grammar.words import AGGREGATES, COLUMNS, COMPARED, FUNCTIONS, ROW_NUMBER, SEARCHED_COLUMNS
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
    "least",
    "figures",
    "said",
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
_ACCUMULATED: Mapping[type[ops.Operator], Parts] = {ops.Generate: frozenset({"logprob", "least", "figures"})}


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
        case ops.Say():
            # What a `generate` goes on from are other tokens then.
            kept: Parts = frozenset({"model", "logprob", "sampled", "least", "figures"})
            return StateAccess(frozenset({"text", "said"}), GENERATED - kept)
        case ops.Generate():
            return StateAccess(PARTS - {"incomplete", "invalid", "closed"}, PARTS - {"context"})
        case ops.Score(raw=raw):
            return StateAccess(frozenset({"context", "text", "closed"} if raw else {"context", "text"}))
        case ops.Judge() | ops.PythonScore():
            return StateAccess(frozenset({"context", "text"}))
        case ops.ValidJson() | ops.Passes():
            return StateAccess(frozenset({"text"}))
        case ops.Prob() | ops.Equal() | ops.Tournament():
            return StateAccess()
        case ops.PythonExtract():
            return StateAccess(frozenset({"context", "text", "incomplete"}))
        case ops.Extract():
            return StateAccess(frozenset({"text", "incomplete"}))
        case ops.LogProb():
            return StateAccess(frozenset({"logprob", "sampled", "least"}))
        case ops.DrawScore():
            return StateAccess(frozenset({"figures"}))
        case ops.TopK(like=like, per=per) if like is not None and per is not None:
            return StateAccess(frozenset({"finished", "text"}), frozenset({"finished", "closed"}))
        case ops.Split(by=by):
            return StateAccess(frozenset({"path", "finished"} if by is not None else {"path"}), frozenset({"path"}))
        case ops.Branch():
            return StateAccess(frozenset({"path"}), frozenset({"path"}))
        case ops.Search():
            return StateAccess(frozenset({"path", "finished"}), frozenset({"path"}))
        case ops.Each(source=ast.JsonPath()):
            return StateAccess(frozenset({"path", "text", "incomplete"}), frozenset({"path"}))
        case ops.Each():
            return StateAccess(frozenset({"path"}), frozenset({"path"}))
        case ops.Call() | ops.Ask():
            return StateAccess(frozenset({"path"}))
        case ops.Return(parse=True):
            return StateAccess(frozenset({"incomplete", "invalid"}))
        case ops.Start() | ops.Let() | ops.Where() | ops.TopK() | ops.Vote() | ops.Repeat() | ops.Peek() | ops.Return():
            return StateAccess()
        case ops.Distinct() | ops.Order() | ops.Join() | ops.If() | ops.Strategy():
            return StateAccess()
    raise TypeError(f"nothing is said of what {type(op).__name__} does to rows")


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
    match op:
        case ops.Generate(via=via) if via is not None:
            yield from (value for _, value in via.numbers)
        case ops.Judge(rubric=rubric, whole=False):
            yield rubric
        case ops.Passes(timeout=timeout) if timeout is not None:
            yield timeout
        case ops.PythonScore(arguments=arguments) | ops.PythonExtract(arguments=arguments):
            yield from (value for _, value in arguments)
        case ops.TopK(k=k):
            yield k
        case ops.Split(count=count, temperature=temperature):
            yield count
            if temperature is not None:
                yield temperature
        case ops.Repeat(limit=limit):
            yield limit
        case ops.Join(sep=sep):
            yield sep
        case ops.Vote(decided=decided) if decided is not None:
            yield decided
        case ops.Search() as search:
            yield from (value for _, value in search.options)
        case ops.DrawScore(window=window) if window is not None:
            yield window


def column_expressions(op: ops.Operator) -> Iterator[ast.Expr]:
    """The expressions of an operator that read columns too; `until` and a search read those that its body makes."""
    match op:
        case ops.SetContext(turns=turns, prompt=prompt):
            yield from (turn.content for turn in turns)
            if prompt is not None:
                yield prompt
        case ops.Say(text=text):
            yield text
        case ops.Generate(constraint=constraint):
            yield from (value for _, value in op.options)
            if constraint is not None and constraint.options is not None:
                yield constraint.options
        case ops.Judge(rubric=rubric, whole=True):
            yield rubric
        case ops.Score(of=of, given=given) | ops.Judge(of=of, given=given) | ops.PythonScore(of=of, given=given):
            yield from (value for value in (of, given) if value is not None)
        case ops.Prob(question=question, answers=answers):
            yield from (question, *answers)
        case ops.Equal(answer=answer, reference=reference):
            yield from (answer, reference)
        case ops.ValidJson(of=of) if of is not None:
            yield of
        case ops.Passes(tests=tests, of=of):
            yield from (value for value in (of, tests) if value is not None)
        case ops.Let(value=value):
            yield value
        case ops.Where(condition=condition):
            yield condition
        case ops.If(condition=condition):
            yield condition
        case ops.TopK(by=by) | ops.Distinct(by=by) | ops.Order(by=by):
            yield by
        case ops.Join(value=value):
            yield value
        case ops.Call(given=given):
            yield from (column.value for column in given)
        case ops.Each(source=source) if not isinstance(source, ast.JsonPath):
            yield source
        case ops.Split(by=by) if by is not None:
            yield by
        case ops.Vote(weight=weight) if weight is not None:
            yield weight
        case ops.Repeat(until=until) if until is not None:
            yield until
        case ops.Search(by=by):
            yield by
        case ops.Return(value=value):
            yield value


def inner_expressions(op: ops.Operator) -> Iterator[ast.Expr]:
    """The expressions of an operator over the rows that its body makes, of which nothing else comes out."""
    if isinstance(op, ops.Call):
        yield op.value


def named_columns(op: ops.Operator) -> Iterator[str]:
    """The columns that an operator reads by their names alone."""
    match op:
        case ops.Vote(column=column, per=per):
            yield column
            if per is not None:
                yield per
        case ops.TopK(per=per) | ops.Split(per=per) | ops.Distinct(per=per) | ops.Join(per=per) if per is not None:
            yield per
        case ops.PythonScore(asks=asks) | ops.PythonExtract(asks=asks):
            yield from asks
        case ops.Tournament(question=question, per=per):
            yield from compared_columns(question)
            if per is not None:
                yield per


def compared_columns(question: ast.Template) -> Iterator[str]:
    """The columns that `compare` shows of two rows: `{a.text}` and `{b.text}` name the column `text`."""
    for part in question.parts:
        if isinstance(part, ast.Path) and part.base.id in COMPARED and isinstance(part.steps[0], str):
            yield part.steps[0]


def made_column(op: ops.Operator) -> str | None:
    """The column that an operator adds, if it adds one."""
    match op:
        case ops.Score() | ops.Judge() | ops.Prob() | ops.LogProb() | ops.DrawScore() | ops.PythonScore():
            return op.into
        case ops.Equal() | ops.ValidJson() | ops.Passes() | ops.Generate() | ops.Call():
            return op.into
        case ops.Extract() | ops.PythonExtract() | ops.Let() | ops.Join() | ops.Each():
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
        case ops.Call(given=given):
            return {column.name: column.type for column in given}
        case ops.Each(column=column, type=type_):
            return {**{name: known for name, known in before.items() if name != column}, column: type_}
    return before


def own_names(op: ops.Operator) -> Columns:
    """The names that an operator itself gives a value in its expressions: the number of a row that is joined."""
    return frozenset({ROW_NUMBER}) if isinstance(op, ops.Join) else frozenset()


def names(expr: ast.Expr) -> Iterator[ast.Name]:
    """Every name that an expression reads, in reading order."""
    match expr:
        case ast.Name():
            yield expr
        case ast.Path(base=base):
            yield base
        case ast.Template(parts=parts):
            for part in parts:
                if not isinstance(part, str):
                    yield from names(part)
        case ast.Unary(operand=operand):
            yield from names(operand)
        case ast.Binary(left=left, right=right):
            yield from names(left)
            yield from names(right)
        case ast.Matches(subject=subject):
            yield from names(subject)
        case ast.Apply(args=args, per=per):
            for arg in args:
                yield from names(arg)
            if per is not None:
                yield per
        case ast.ListLiteral(items=items):
            for item in items:
                yield from names(item)
        case ast.RecordLiteral(fields=entries):
            for entry in entries:
                yield from names(entry.value)


def _is_aggregate(node: ast.Node) -> TypeGuard[ast.Apply]:
    """Whether it looks at all rows: `min` and `max` of several values look at one."""
    return isinstance(node, ast.Apply) and node.function in AGGREGATES and len(node.args) < 2


def reads_all_rows(expr: ast.Expr) -> bool:
    """Whether an aggregate stands in an expression, so that its value for a row depends on the other rows."""
    return any(_is_aggregate(node) for node in walk(expr))


def is_same_for_all(expr: ast.Expr, params: Container[str]) -> bool:
    """Whether an expression reads no column and looks at no rows, so that it has one value for all of them."""
    return all(name.id in params for name in names(expr)) and not any(isinstance(n, ast.Apply) for n in walk(expr))


def varies(expr: ast.Node, columns: Container[str]) -> bool:
    """Whether the value of an expression may differ from row to row, where rows have these columns."""
    if _is_aggregate(expr):
        return expr.per is not None
    if isinstance(expr, ast.Name):
        return expr.id in columns
    return any(varies(child, columns) for child in children(expr))


def is_fixed(expr: ast.Expr) -> bool:
    """Whether an expression reads no name and can be worked out, even where it holds an error."""
    match expr:
        case ast.Name() | ast.Path() | ast.Matches():
            return False
        case ast.Template(parts=parts):
            return all(isinstance(part, str) for part in parts)
        case ast.Unary(operand=operand):
            return is_fixed(operand)
        case ast.Binary(left=left, right=right):
            return is_fixed(left) and is_fixed(right)
        case ast.Apply(function=function, args=args, per=per):
            # These depend on how many rows there are.
            counts = function in ("count", "sum")
            known = function in FUNCTIONS and not counts and bool(args) and per is None
            return known and all(is_fixed(arg) for arg in args)
        case ast.ListLiteral(items=items):
            return all(is_fixed(item) for item in items)
        case ast.RecordLiteral(fields=entries):
            return all(is_fixed(entry.value) for entry in entries)
    return True


def reads(node: PhysicalOp) -> Columns:
    """The columns that an operator reads of the rows it gets, those inside it aside.

    A Python function can ask for all columns of a row. A column that is there already stays in rows that a `generate`
    passes as they are, and in those that a raw `score` finds closed.
    """
    op = node.op
    if isinstance(op, (ops.PythonScore, ops.PythonExtract)) and op.row:
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
    return "logprob" in reported(plan) or asks_for_logprobs(plan)


def asks_for_logprobs(plan: PhysicalPlan) -> bool:
    """The same, but where somebody looks at all columns of the last rows only if an operator reads it."""
    return "logprob" in (plan.reads or ()) or any(
        "logprob" in state_access(node.op).reads - _ACCUMULATED.get(type(node.op), _NOTHING)
        or "logprob" in reads(node) | inner_reads(node)
        for node in everything(plan.ops)
    )


def reads_figures(plan: PhysicalPlan) -> bool:
    """Whether an operator reads what is told of draws besides their log-probabilities."""
    return any(isinstance(node.op, ops.DrawScore) for node in everything(plan.ops))


def with_columns(chain: Chain, before: Mapping[str, str]) -> Chain:
    """The operators with the columns that they have now, where the first gets those of `before`."""
    nodes: list[PhysicalOp] = []
    for node in chain:
        body = with_columns(node.body, columns_inside(node.op, before))
        arms = tuple(with_columns(arm, before) for arm in node.arms)
        node = with_inner(node, body, arms)
        left = before.keys() | made_columns(node.op, [inner[-1].columns for inner in node.inside if inner])
        columns = {name: type_ for name, type_ in node.columns.items() if name in left}
        if len(columns) < len(node.columns):
            node = replace(node, columns=columns)
        nodes.append(node)
        before = node.columns
    return tuple(nodes)
