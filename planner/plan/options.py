"""The values that stages take: their types and ranges, as far as they are known before a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from qpdsl.grammar import ast
from qpdsl.grammar.source import Span
from qpdsl.planner.values.value import Value

Number = int | float
# The largest whole number that a parameter takes, and the largest number of an option.
LARGEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Range:
    """A type, and the bounds of a number in words and figures; `open_low` leaves the lower bound out."""

    type: str
    low: Number
    high: Number = float("inf")
    open_low: bool = False
    open_high: bool = False

    def holds(self, value: Number) -> bool:
        above = value > self.low if self.open_low else value >= self.low
        return above and (value < self.high if self.open_high else value <= self.high)

    def __str__(self) -> str:
        low = f"{'over' if self.open_low else 'at least'} {self.low}"
        if self.high == float("inf"):
            return low
        return f"{low} and {'under' if self.open_high else 'at most'} {self.high}"


RANGES: Mapping[str, Range] = {
    "n": Range("int", 1, 65536),
    "temperature": Range("float", 0),
    "top_p": Range("float", 0, 1, open_low=True),
    "top_k": Range("int", 1),
    "min_p": Range("float", 0, 1, open_high=True),
    "max_tokens": Range("int", 1),
    "threshold": Range("float", 0, 1),
    "share": Range("float", 0, 1),
    "rows": Range("int", 1, 65536),
    "wait": Range("float", 0, 3600),
    "margin": Range("float", 0, 1),
    "layer": Range("int", 1),
    "rerank": Range("int", 1),
    "certify": Range("float", 0),
    "keep": Range("int", 1),
    "split": Range("int", 1, 65536),
    "split temperature": Range("float", 0),
    "repeat": Range("int", 1, 1_000_000),
    "timeout": Range("float", 0, 600, open_low=True),
    "simulations": Range("int", 1, 1_000_000),
    "c": Range("float", 0),
    "window": Range("int", 1),
    "per_round": Range("int", 1, 65536),
    "decided": Range("float", 0.5, 1, open_low=True, open_high=True),
}
MOST_ARMS = 64
# How deep calls may go, and how many stages those of one file may add to its programs.
MOST_CALLS = 64
MOST_INLINED = 10_000


def constant(expr: ast.Expr | None) -> ast.Expr | None:
    """The literal that an expression spells, signs folded; None where it spells more."""
    if isinstance(expr, ast.Literal):
        return expr
    if isinstance(expr, ast.Template):
        return expr if all(isinstance(part, str) for part in expr.parts) else None
    if isinstance(expr, ast.Unary) and expr.op == "-":
        inner = constant(expr.operand)
        if isinstance(inner, ast.Literal) and type(inner.value) in (int, float):
            return ast.Literal(-inner.value, span=expr.span)  # type: ignore[operator]
    if isinstance(expr, ast.ListLiteral):
        items = tuple(constant(item) for item in expr.items)
        return None if None in items else ast.ListLiteral(items, span=expr.span)  # type: ignore[arg-type]
    if isinstance(expr, ast.RecordLiteral):
        fields = [(entry, constant(entry.value)) for entry in expr.fields]
        entries = tuple(replace(entry, value=value) for entry, value in fields if value is not None)
        return ast.RecordLiteral(entries, span=expr.span) if len(entries) == len(fields) else None
    return None


def spelt(value: Value, span: Span) -> ast.Expr:
    """The literal that spells a value."""
    if isinstance(value, str):
        return ast.Template((value,) if value else (), span=span)
    if isinstance(value, tuple):
        return ast.ListLiteral(tuple(spelt(item, span) for item in value), span=span)
    if isinstance(value, Mapping):
        entries = (ast.RecordEntry(name, spelt(part, span), span=span, name_span=span) for name, part in value.items())
        return ast.RecordLiteral(tuple(entries), span=span)
    return ast.Literal(value, span=span)


def default_of(expr: ast.Expr | None, params: Mapping[str, ast.Param]) -> tuple[ast.Expr | None, Span | None]:
    """The constant that an expression has when no argument is given, and where a parameter's default says so."""
    if isinstance(expr, ast.Name) and expr.id in params:
        default = constant(params[expr.id].default)
        return default, default.span if default else None
    return constant(expr), None
