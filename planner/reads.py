"""What operators read: the expressions that they hold, and the names in those."""

from __future__ import annotations

from collections.abc import Iterator

from qpdsl.grammar import ast
from qpdsl.planner import ops


def parameter_expressions(op: ops.Operator) -> Iterator[ast.Expr]:
    """The expressions of an operator that read parameters only."""
    match op:
        case ops.SetContext(turns=turns, prompt=prompt):
            yield from (turn.content for turn in turns)
            if prompt is not None:
                yield prompt
        case ops.Generate():
            options = (op.n, op.temperature, op.top_p, op.top_k, op.min_p, op.stop, op.max_tokens)
            yield from (value for value in options if value is not None)
        case ops.TopK(k=k):
            yield k
        case ops.Repeat(limit=limit):
            yield limit


def column_expressions(op: ops.Operator) -> Iterator[ast.Expr]:
    """The expressions of an operator that read columns too; `until` reads those that its body makes."""
    match op:
        case ops.TopK(by=by):
            yield by
        case ops.Vote(weight=weight) if weight is not None:
            yield weight
        case ops.Repeat(until=until) if until is not None:
            yield until
        case ops.Return(value=value):
            yield value


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
