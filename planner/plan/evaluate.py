"""Evaluating expressions. `none` spreads through arithmetic, never orders, and counts as false."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from qpdsl.grammar import ast
from qpdsl.grammar.literals.matcher import matcher

Value = str | int | float | bool | None
Scope = Mapping[str, Value]

# A number as people and programs write it; Python's own functions take more, such as `1_000` and other scripts' digits.
NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")


def format_value(value: Value) -> str:
    """A value as it stands in an interpolated string."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "none" if value is None else str(value)


def evaluate(expr: ast.Expr, scope: Scope) -> Value:
    """The value of an expression over one row: `scope` maps its columns and the parameters."""
    return _Evaluator(scope, None).value(expr)


def evaluate_rows(expr: ast.Expr, rows: Sequence[Scope], params: Scope) -> Value:
    """The value of an expression over a whole relation: aggregates see all rows, a bare column the first row's."""
    return _Evaluator(rows[0] if rows else params, rows).value(expr)


def split_template(template: ast.Template, scope: Scope) -> list[tuple[str, bool]]:
    """The text of a template in pieces, each with whether the program's author wrote it or a value brought it in."""
    return [(part, True) if isinstance(part, str) else (format_value(scope[part.id]), False) for part in template.parts]


class _Evaluator:
    def __init__(self, scope: Scope, rows: Sequence[Scope] | None) -> None:
        self._scope = scope
        self._rows = rows

    def value(self, expr: ast.Expr) -> Value:
        match expr:
            case ast.Literal(value=value):
                return value
            case ast.Name(id=name):
                return self._scope.get(name)
            case ast.Template():
                return "".join(text for text, _ in split_template(expr, self._scope))
            case ast.Unary(op="not", operand=operand):
                return not self.value(operand)
            case ast.Unary(operand=operand):
                number = self.value(operand)
                return -number if isinstance(number, (int, float)) else None
            case ast.Binary(op="and", left=left, right=right):
                return bool(self.value(left)) and bool(self.value(right))
            case ast.Binary(op="or", left=left, right=right):
                return bool(self.value(left)) or bool(self.value(right))
            case ast.Binary(op=op, left=left, right=right):
                return _binary(op, self.value(left), self.value(right))
            case ast.Matches(subject=subject, regex=regex):
                text = self.value(subject)
                return isinstance(text, str) and matcher(regex.pattern).matches(text)
            case ast.Apply(function=function, args=args):
                return self._apply(function, args)
        raise TypeError(f"no expression: {expr!r}")

    def _apply(self, function: str, args: tuple[ast.Expr, ...]) -> Value:
        if function == "len":
            text = self.value(args[0])
            return len(text) if isinstance(text, str) else None
        if len(args) == 1 and self._rows is not None:
            values = [_Evaluator(row, None).value(args[0]) for row in self._rows]
            if function == "all":
                return all(values)
            if function == "any":
                return any(values)
        else:
            values = [self.value(arg) for arg in args]
        numbers = [value for value in values if isinstance(value, (int, float))]
        try:
            return _AGGREGATES[function](numbers) if numbers else None
        except OverflowError:
            return None


_AGGREGATES: dict[str, Callable[[list[int | float]], Value]] = {
    "min": min,
    "max": max,
    "mean": lambda numbers: sum(numbers) / len(numbers),
    "all": all,
    "any": any,
}

_ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "%": lambda a, b: a % b,
}

_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def _binary(op: str, left: Value, right: Value) -> Value:
    if op == "==":
        return left == right
    if op == "!=":
        return left != right
    if isinstance(left, str) and isinstance(right, str):
        if op == "+":
            return left + right
        if op in _COMPARISONS:
            return {"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[op]
        return None
    if not isinstance(left, (int, float)) or not isinstance(right, (int, float)):
        return False if op in _COMPARISONS else None
    if op in _COMPARISONS:
        return _COMPARISONS[op](left, right)
    if op in "/%" and right == 0:
        return None
    try:
        return _ARITHMETIC[op](left, right)
    except OverflowError:
        return None
