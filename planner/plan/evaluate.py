"""Evaluating expressions. `none` spreads through arithmetic, never orders, and counts as false.

An aggregate looks at all rows of the stage, or with `per` at those that share the row's value of a column. So an
operator evaluates an expression for all its rows at once (`evaluate_each`), and each aggregate is computed once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

from qpdsl.grammar import ast
from qpdsl.grammar.literals.matcher import matcher
from qpdsl.planner.values.library import AGGREGATES, OF_SEVERAL, ROW_FUNCTIONS, bounded, contains
from qpdsl.planner.values.value import Record, Value, format_value, value_at

Scope = Mapping[str, Value]
# The numbers of a `random()`, by its number among the draws of the program: one for each row.
Draw = Callable[[int], Sequence[float]]
# Behind the last place of anything.
_END = sys.maxsize


def evaluate(expr: ast.Expr | None, scope: Scope) -> Value:
    """The value of an expression over one row, which is the only one: `scope` maps its columns and the parameters.

    One that is left out is none.
    """
    return None if expr is None else _Evaluator((scope,)).value(expr, scope)


def evaluate_each(expr: ast.Expr, rows: Sequence[Scope], draw: Draw | None = None) -> list[Value]:
    """The value of an expression for each of the rows, which aggregates in it see all of.

    Without a `draw`, what is random is none.
    """
    evaluator = _Evaluator(rows, draw)
    return [evaluator.value(expr, row) for row in rows]


def evaluate_rows(expr: ast.Expr, rows: Sequence[Scope], params: Scope) -> Value:
    """The value of an expression over a whole relation: aggregates see all rows, a bare column the first row's."""
    return _Evaluator(rows).value(expr, rows[0] if rows else params)


def split_template(template: ast.Template, scope: Scope) -> list[tuple[str, bool]]:
    """The text of a template in pieces, each with whether the program's author wrote it or a value brought it in."""
    return [
        (part, True) if isinstance(part, str) else (format_value(_inserted(part, scope)), False)
        for part in template.parts
    ]


def _inserted(part: ast.Name | ast.Path, scope: Scope) -> Value:
    if isinstance(part, ast.Name):
        return scope.get(part.id)
    return value_at(scope.get(part.base.id), part.steps)


class _Evaluator:
    """Evaluates over `rows`. Aggregates are kept by the place of their node in memory: expressions outlive this."""

    def __init__(self, rows: Sequence[Scope], draw: Draw | None = None) -> None:
        self._rows, self._draw = rows, draw
        self._aggregates: dict[int, Mapping[Value, Value]] = {}

    def value(self, expr: ast.Expr, scope: Scope) -> Value:
        match expr:
            case ast.Literal(value=value):
                return value
            case ast.Name(id=name):
                return scope.get(name)
            case ast.Path():
                return _inserted(expr, scope)
            case ast.Template():
                return bounded("".join(text for text, _ in split_template(expr, scope)))
            case ast.Unary(op="not", operand=operand):
                return not self.value(operand, scope)
            case ast.Unary(operand=operand):
                number = self.value(operand, scope)
                return -number if isinstance(number, (int, float)) else None
            case ast.Binary(op="and", left=left, right=right):
                return bool(self.value(left, scope)) and bool(self.value(right, scope))
            case ast.Binary(op="or", left=left, right=right):
                return bool(self.value(left, scope)) or bool(self.value(right, scope))
            case ast.Binary(op=op, left=left, right=right):
                return _binary(op, self.value(left, scope), self.value(right, scope))
            case ast.Matches(subject=subject, regex=regex):
                text = self.value(subject, scope)
                return isinstance(text, str) and matcher(regex.pattern).matches(text)
            case ast.Apply():
                return self._apply(expr, scope)
            case ast.Item(base=base, place=place):
                return _item(self.value(base, scope), self.value(place, scope))
            case ast.Slice(base=base, start=start, stop=stop):
                first = 0 if start is None else self.value(start, scope)
                end = _END if stop is None else self.value(stop, scope)
                return _part(self.value(base, scope), first, end)
            case ast.ListLiteral(items=items):
                return tuple(self.value(item, scope) for item in items)
            case ast.RecordLiteral(fields=fields):
                return Record({field.name: self.value(field.value, scope) for field in fields})
        raise TypeError(f"no expression: {expr!r}")

    def _apply(self, call: ast.Apply, scope: Scope) -> Value:
        if call.function in ROW_FUNCTIONS:
            return ROW_FUNCTIONS[call.function]([self.value(arg, scope) for arg in call.args])
        if call.function in OF_SEVERAL and len(call.args) > 1:
            return OF_SEVERAL[call.function](*(self.value(arg, scope) for arg in call.args))
        if call.args and AGGREGATES[call.function].of_lists:
            value = self.value(call.args[0], scope)
            if isinstance(value, tuple):
                return AGGREGATES[call.function](value, *self._shares(call))
        if id(call) not in self._aggregates:
            self._aggregates[id(call)] = self._grouped(call)
        values = self._aggregates[id(call)]
        if AGGREGATES[call.function].of_each:
            return values.get(id(scope))
        return values.get(None if call.per is None else scope.get(call.per.id))

    def _shares(self, call: ast.Apply) -> list[Value]:
        """The arguments of an aggregate that are the same for all rows."""
        return [self.value(arg, self._rows[0] if self._rows else {}) for arg in call.args[1:]]

    def _grouped(self, call: ast.Apply) -> Mapping[Value, Value]:
        """The value of an aggregate for each value of its `per`, without one that of none; or for each row's place."""
        per, aggregate = call.per, AGGREGATES[call.function]
        if call.function == "random":
            drawn = [] if self._draw is None else self._draw(call.draw)
            return {id(row): number for row, number in zip(self._rows, drawn, strict=False)}
        groups: dict[Value, list[Value]] = {} if per is not None else {None: []}
        members: dict[Value, list[int]] = {}
        for row in self._rows:
            # Rows are counted where nothing is said of them.
            value = self.value(call.args[0], row) if call.args else True
            group = None if per is None else row.get(per.id)
            groups.setdefault(group, []).append(value)
            members.setdefault(group, []).append(id(row))
        if aggregate.of_each is None:
            shares = self._shares(call)
            return {group: aggregate(values, *shares) for group, values in groups.items()}
        return {
            row: value
            for group, rows in members.items()
            for row, value in zip(rows, aggregate.of_each(groups[group]), strict=True)
        }


def _item(whole: Value, place: Value) -> Value:
    if not isinstance(whole, tuple) or type(place) is not int or not -len(whole) <= place < len(whole):
        return None
    item: Value = whole[place]
    return item


def _part(whole: Value, start: Value, stop: Value) -> Value:
    if not isinstance(whole, tuple | str) or type(start) is not int or type(stop) is not int:
        return None
    part: Value = whole[start:stop]
    return part


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
    if op == "in":
        return contains(right, left)
    if isinstance(left, str) and isinstance(right, str):
        if op == "+":
            return bounded(left + right)
        if op in _COMPARISONS:
            return {"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[op]
        return None
    if isinstance(left, tuple) and isinstance(right, tuple):
        return bounded(left + right) if op == "+" else False if op in _COMPARISONS else None
    if not isinstance(left, (int, float)) or not isinstance(right, (int, float)):
        return False if op in _COMPARISONS else None
    if op in _COMPARISONS:
        return _COMPARISONS[op](left, right)
    if op in "/%" and right == 0:
        return None
    try:
        return bounded(_ARITHMETIC[op](left, right))
    except OverflowError:
        return None
