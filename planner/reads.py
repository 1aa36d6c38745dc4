"""What operators read: the expressions that they hold, and the names in those."""

from __future__ import annotations

from collections.abc import Iterator

from qpdsl.grammar import ast
from qpdsl.grammar.words import FUNCTIONS
from qpdsl.planner import ops


def parameter_expressions(op: ops.Operator) -> Iterator[ast.Expr]:
    """The expressions of an operator that read parameters only."""
    match op:
        case ops.Generate():
            options = (op.n, op.temperature, op.top_p, op.top_k, op.min_p, op.stop, op.max_tokens)
            yield from (value for value in options if value is not None)
            if isinstance(op.via, ops.Filter):
                yield op.via.threshold
            elif isinstance(op.via, ops.Amortized):
                yield op.via.margin
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
        case ops.Assign(value=value) | ops.Return(value=value):
            yield value


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
        case ops.Extract() | ops.PythonExtract() | ops.Assign():
            return op.column
    return None


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
