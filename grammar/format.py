"""Syntax back to source text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import groupby

from qpdsl.grammar import ast

_LEVELS = {"or": 1, "and": 2, "not": 3, "==": 4, "!=": 4, "<": 4, "<=": 4, ">": 4, ">=": 4, "matches": 4}
_LEVELS |= {"+": 5, "-": 5, "*": 6, "/": 6, "%": 6}
_NEGATION = 7
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_BARE = re.compile(r"\\[^\n]|[/\x00-\x08\n\x0b\x0e-\x1f\x7f]")
_INTERPOLATION = re.compile(r"\{(?=[A-Za-z_][A-Za-z0-9_]*\})")


def format_expr(expr: ast.Expr, values: Mapping[str, ast.Expr] | None = None) -> str:
    """The expression as source; names in `values` (parameters with a default) are shown as their values."""
    return _expr(expr, 0, values or {})


def format_pattern(pattern: ast.Regex | ast.JsonPath) -> str:
    """A regex with its slashes, or a JSON path with its leading dot."""
    if isinstance(pattern, ast.Regex):
        return f"/{_BARE.sub(_escaped_in_regex, pattern.pattern)}/"
    text = "".join(f".{step}" if isinstance(step, str) else f"[{step}]" for step in pattern.steps)
    return text if text.startswith(".") else f".{text}"


def format_text(text: str) -> str:
    """A plain string, quoted."""
    return '"' + _escaped_text(text) + '"'


def _expr(expr: ast.Expr, level: int, values: Mapping[str, ast.Expr]) -> str:
    """The text of `expr`, in parentheses where it binds looser than `level`."""
    match expr:
        case ast.Literal(value=value):
            return "none" if value is None else repr(value).lower()
        case ast.Name(id=id):
            return _expr(values[id], level, {}) if id in values else id
        case ast.Template(parts=parts):
            return '"' + "".join(_pieces(parts)) + '"'
        case ast.Unary(op="not", operand=operand):
            return _wrap(f"not {_expr(operand, 3, values)}", 3, level)
        case ast.Unary(operand=operand):
            return _wrap(f"-{_expr(operand, _NEGATION, values)}", _NEGATION, level)
        case ast.Binary(op=op, left=left, right=right):
            own = _LEVELS[op]
            # Comparisons do not chain, so a comparison on the left needs parentheses as one on the right does.
            text = f"{_expr(left, own + (own == 4), values)} {op} {_expr(right, own + 1, values)}"
            return _wrap(text, own, level)
        case ast.Matches(subject=subject, regex=regex):
            return _wrap(f"{_expr(subject, 5, values)} matches {format_pattern(regex)}", 4, level)
        case ast.Apply(function=function, args=args):
            return f"{function}({', '.join(_expr(arg, 0, values) for arg in args)})"


def _wrap(text: str, own: int, level: int) -> str:
    return f"({text})" if own < level else text


def _pieces(parts: tuple[str | ast.Name, ...]) -> Iterator[str]:
    """Texts that stand side by side are one: a brace in the first may close in the second."""
    for is_text, run in groupby(parts, lambda part: isinstance(part, str)):
        if is_text:
            yield _escaped_text("".join(str(part) for part in run))
        else:
            yield from (f"{{{part.id}}}" for part in run if isinstance(part, ast.Name))


def _escaped_text(text: str) -> str:
    escaped = "".join(_ESCAPES.get(char, char if char.isprintable() else _escaped(char)) for char in text)
    return _INTERPOLATION.sub(r"\\{", escaped)


def _escaped_in_regex(match: re.Match[str]) -> str:
    """A bare slash or control character; an escape that stands there stays."""
    char = match[0]
    return char if len(char) > 1 else "\\/" if char == "/" else f"\\x{ord(char):02x}"


def _escaped(char: str) -> str:
    """Characters beyond the first plane have no escape and stand for themselves."""
    return f"\\u{ord(char):04x}" if ord(char) <= 0xFFFF else char
