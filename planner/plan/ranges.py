"""Between which numbers the value of an expression lies, where it is known between which its names lie.

Interval arithmetic (Moore, 1966): of what can still happen to a sample, such as that it gets more tokens, it tells
what a key or a weight can still become. Floats are rounded monotonically, so a bound is one after rounding too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import product
from typing import NamedTuple

from qpdsl.grammar import ast
from qpdsl.grammar.ast.walk import made_column
from qpdsl.planner.plan import ops
from qpdsl.planner.values.value import Value


class Interval(NamedTuple):
    """From `low` to `high`, both inclusive. Unless it is `sure` the value may be none, or no number, as well."""

    low: float = -math.inf
    high: float = math.inf
    sure: bool = False


ANY = Interval()
# What is made of step scores in [0, 1] that is in [0, 1] too, and what of that only falls, step by step.
IN_UNIT = ("last", "min", "mean", "prod")
FALLING = ("min", "prod")
_MONOTONE: Mapping[str, Callable[[float], float]] = {
    "exp": math.exp,
    "log": math.log,
    "sqrt": math.sqrt,
    "float": float,
    "int": lambda value: value if math.isinf(value) else math.trunc(value),
}
_ENDS: Mapping[str, Callable[[float, float], float]] = {"*": lambda a, b: a * b, "/": lambda a, b: a / b}


def range_of(expr: ast.Expr, names: Mapping[str, Interval]) -> Interval:
    """The range of an expression over one row; `ANY` where nothing is known of it."""
    match expr:
        case ast.Literal(value=value):
            return range_of_value(value)
        case ast.Name(id=name):
            return names.get(name, ANY)
        case ast.Unary(op="-", operand=operand):
            low, high, sure = range_of(operand, names)
            return Interval(-high, -low, sure)
        case ast.Binary(op="+" | "-" | "*" | "/" as op, left=left, right=right):
            return _arithmetic(op, range_of(left, names), range_of(right, names))
        case ast.Apply(function=function, args=args, per=None):
            return _applied(function, [range_of(arg, names) for arg in args], args)
    return ANY


def range_of_value(value: Value) -> Interval:
    """That of a value that is known."""
    try:
        return Interval(float(value), float(value), sure=True) if isinstance(value, (int, float)) else ANY
    except OverflowError:
        return ANY


def _arithmetic(op: str, left: Interval, right: Interval) -> Interval:
    sure = left.sure and right.sure
    match op:
        case "+":
            return Interval(left.low + right.low, left.high + right.high, sure)
        case "-":
            return Interval(left.low - right.high, left.high - right.low, sure)
        case "/" if right.low <= 0 <= right.high:
            return ANY
    ends = [_ENDS[op](a, b) for a, b in product(left[:2], right[:2])]
    # Nothing times more than anything, or a part of it.
    ends = [0.0 if math.isnan(end) else end for end in ends]
    return Interval(min(ends), max(ends), sure)


def _applied(function: str, given: list[Interval], args: tuple[ast.Expr, ...]) -> Interval:
    sure = [one for one in given if one.sure]
    lows, highs = [one.low for one in given], [one.high for one in given]
    match function:
        case "min" if len(given) > 1:
            # It leaves out what is none.
            return Interval(min(lows), min(one.high for one in sure) if sure else max(highs), bool(sure))
        case "max" if len(given) > 1:
            return Interval(max(one.low for one in sure) if sure else min(lows), max(highs), bool(sure))
        case "if":
            return Interval(min(lows[1:]), max(highs[1:]), all(one.sure for one in given[1:]))
        case "round" if len(args) == 1 or isinstance(args[1], ast.Literal):
            digits = args[1].value if len(args) > 1 and isinstance(args[1], ast.Literal) else 0
            assert isinstance(digits, int)
            low, high = (end if math.isinf(end) else round(end, digits) for end in given[0][:2])
            return Interval(low, high, given[0].sure)
        case _ if function in _MONOTONE:
            return Interval(*_ends(_MONOTONE[function], *given[0][:2]))
    return ANY


def _ends(function: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
    """What a function that never falls makes of both ends. Below where it has values it has none, and is none."""
    ends = []
    for value, too_large in ((low, -math.inf), (high, math.inf)):
        try:
            ends.append(function(value))
        except ValueError:
            ends.append(-math.inf)
        except OverflowError:
            ends.append(too_large)
    return ends[0], ends[1]


def ranges_after(
    operators: Iterable[ops.Operator], names: Mapping[str, Interval], of_score: Callable[[ops.StepScore], Interval]
) -> Mapping[str, Interval]:
    """The ranges of a row's columns behind operators that each look at one row, where before them they are these."""
    known = dict(names)
    for op in operators:
        made = made_column(op)
        if isinstance(op, ops.Let):
            known[op.column.id] = range_of(op.value, known)
        elif isinstance(op, ops.StepScore):
            known[op.made] = of_score(op)
        elif isinstance(op, ops.LogProb):
            whole = op.of is None and op.reduce == "sum" and "logprob" in names
            known[op.made] = names["logprob"] if whole else Interval(high=0.0)
        elif made is not None:
            known[made] = ANY
    return known
