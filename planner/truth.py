"""What a condition can come to, as far as columns that every row has tell: some conditions never hold, some always.

A value is known as a range of numbers, as a set of values, or not at all (None).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from qpdsl.grammar import ast
from qpdsl.planner.expr import Value
from qpdsl.planner.scope import FINISHES, Scope
from qpdsl.planner.walk import Flow

EITHER: frozenset[Value] = frozenset({True, False})


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers between two bounds, the bounds included; `absent` says that there may be none."""

    low: float = -inf
    high: float = inf
    absent: bool = False


Known = Range | frozenset[Value] | None


@dataclass(frozen=True, slots=True)
class Relation:
    """What is known of rows: the values of their columns, and whether there may be no row at all."""

    columns: Mapping[str, Known]
    empty: bool


def relation(flow: Flow, scope: Scope) -> Relation:
    """The rows at a point of a program; a column that the program has put in the place of another is not known."""
    finishes: frozenset[Value] = frozenset({*FINISHES, None})
    known: dict[str, Known] = {
        "finish": finishes,
        "finished": EITHER,
        "tokens": Range(low=0),
        "group": Range(low=0),
        "logprob": Range(high=0),
    }
    if flow.fresh:
        known |= {"text": frozenset({""}), "step": frozenset({""}), "finish": frozenset({None})}
        known |= {"finished": frozenset({False}), "tokens": Range(0, 0), "logprob": Range(0, 0)}
    elif flow.spent is not None:
        known |= {"finished": frozenset({True}), "finish": finishes - {"stop", None}}
    own = {name for name, column in scope.columns.items() if column.maker is not None}
    return Relation({name: value for name, value in known.items() if name not in own}, flow.filtered)


def outcomes(condition: ast.Expr, rows: Relation) -> frozenset[Value]:
    """True and False, as far as the condition can come to them."""
    found = _value(condition, rows)
    return found if isinstance(found, frozenset) else EITHER


def _value(expr: ast.Expr, rows: Relation) -> Known:
    match expr:
        case ast.Literal(value=bool(value)) | ast.Literal(value=None as value):
            return frozenset({value})
        case ast.Literal(value=value) if isinstance(value, (int, float)):
            return Range(value, value)
        case ast.Template(parts=parts) if all(isinstance(part, str) for part in parts):
            return frozenset({"".join(map(str, parts))})
        case ast.Name(id=name):
            return rows.columns.get(name)
        case ast.Unary(op="not", operand=operand):
            return frozenset(not value for value in outcomes(operand, rows))
        case ast.Unary(operand=operand):
            inner = _value(operand, rows)
            return Range(-inner.high, -inner.low, inner.absent) if isinstance(inner, Range) else None
        case ast.Binary(op="and", left=left, right=right):
            return frozenset(a and b for a in outcomes(left, rows) for b in outcomes(right, rows))
        case ast.Binary(op="or", left=left, right=right):
            return frozenset(a or b for a in outcomes(left, rows) for b in outcomes(right, rows))
        case ast.Binary(op=op, left=left, right=right):
            return _compared(op, _value(left, rows), _value(right, rows))
        case ast.Apply(function="len"):
            return Range(low=0, absent=True)
        case ast.Apply(function=function, args=(argument,)):
            return _over_rows(function, argument, rows)
    return None


def _over_rows(function: str, argument: ast.Expr, rows: Relation) -> Known:
    if function in ("all", "any"):
        nothing: frozenset[Value] = frozenset({function == "all"}) if rows.empty else frozenset()
        return outcomes(argument, rows) | nothing
    value = _value(argument, rows)
    return Range(value.low, value.high, value.absent or rows.empty) if isinstance(value, Range) else None


def _compared(op: str, left: Known, right: Known) -> Known:
    """A comparison with none is false, and so is one of a number that is absent."""
    if isinstance(left, frozenset) and isinstance(right, frozenset) and op in ("==", "!="):
        equal = frozenset(a == b for a in left for b in right)
        return equal if op == "==" else frozenset(not each for each in equal)
    if not (isinstance(left, Range) and isinstance(right, Range)):
        return None if op in ("+", "-", "*", "/", "%") else EITHER
    absent: frozenset[Value] = frozenset({op == "!="}) if left.absent or right.absent else frozenset()
    match op:
        case "<" | ">=":
            found = _under(left, right)
            return absent | (found if op == "<" else frozenset(not each for each in found))
        case ">" | "<=":
            found = _under(right, left)
            return absent | (found if op == ">" else frozenset(not each for each in found))
        case "==" | "!=":
            meet = left.low <= right.high and right.low <= left.high
            same = left.low == left.high == right.low == right.high
            found = frozenset({True} if same else {True, False} if meet else {False})
            return absent | (found if op == "==" else frozenset(not each for each in found))
    return None


def _under(left: Range, right: Range) -> frozenset[Value]:
    can = frozenset({True}) if left.low < right.high else frozenset()
    return can | (frozenset({False}) if left.high >= right.low else frozenset())
