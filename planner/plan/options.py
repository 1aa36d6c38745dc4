"""The values that stages take: their types and ranges, as far as they are known before a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from qpdsl.grammar import ast
from qpdsl.grammar.source import Span
from qpdsl.grammar.words import SYSTEM_PROMPTS
from qpdsl.planner.values.value import Value

# The largest whole number that a parameter takes, and the largest number of an option.
LARGEST = 2**63 - 1


def _declared(cls: type[ast.Node]) -> Iterator[tuple[str, ast.Range]]:
    for _, part in ast.parts(cls):
        if part.range is not None:
            yield part.limit, part.range


# The ranges of all numbers that stages take, by what messages call them.
RANGES: Mapping[str, ast.Range] = {
    name: range
    for cls in (*ast.STAGES.values(), ast.Passes, ast.DrawScore, ast.Filter, ast.Contrast, ast.Amortized)
    for name, range in _declared(cls)
}
MAX_ARMS = 64
# How many stages a program may have: each knows the columns that it gets, so their number counts twice.
MAX_STAGES = 4096
# How deep calls may go, and how many stages those of one file may add to its programs.
MAX_CALLS = 64
MAX_INLINED = 10_000


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


def left_out(param: ast.Param, like: ast.Like | None) -> ast.Expr | None:
    """What a parameter without a default is where nobody gives it; None where it must be given, or has a default.

    A parameter `system: text?` is the prompt of the system that its program is `like`, else such a one is none.
    """
    if param.default is not None or not param.optional:
        return None
    if (
        like is not None
        and param.name == "system"
        and isinstance(param.type, ast.TypeRef)
        and param.type.name == "text"
    ):
        return ast.Template((SYSTEM_PROMPTS[like.system],), span=param.span)
    return ast.Literal(None, span=param.span)
