"""Substitution of values for names in stages: a called program with its arguments in the place of its parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any

from qpdsl.grammar import ast
from qpdsl.grammar.ast.walk import walk
from qpdsl.grammar.source import Span
from qpdsl.planner.plan.evaluate import format_value


def substitute(stage: ast.Stage, values: Mapping[str, ast.Expr], span: Span) -> ast.Stage:
    """The stage with every name in `values` replaced. Values keep their spans; every other node gets `span`.

    A value whose name stands in a string must be a name, a literal or a string.
    """
    substituted: ast.Stage = _node(stage, values, span)
    return substituted


def names_in_strings(stages: tuple[ast.Stage, ...]) -> set[str]:
    """The names that strings interpolate."""
    templates = [node for node in walk(stages) if isinstance(node, ast.Template)]
    return {part.id for template in templates for part in template.parts if isinstance(part, ast.Name)}


def _node(value: Any, values: Mapping[str, ast.Expr], span: Span) -> Any:
    if isinstance(value, tuple):
        return tuple(_node(item, values, span) for item in value)
    if isinstance(value, ast.Template):
        return ast.Template(tuple(_parts(value, values, span)), span=span)
    if isinstance(value, Span):
        return span
    if isinstance(value, ast.Name) and value.id in values:
        return values[value.id]
    return _rebuilt(value, values, span) if is_dataclass(value) else value


def _rebuilt(node: Any, values: Mapping[str, ast.Expr], span: Span) -> Any:
    return type(node)(**{name: _node(getattr(node, name), values, span) for name in node.__dataclass_fields__})


def _parts(template: ast.Template, values: Mapping[str, ast.Expr], span: Span) -> Iterator[str | ast.Name]:
    """The parts with strings and literals spelt out; adjacent texts become one part."""
    text = ""
    for part in template.parts:
        for piece in _pieces(part, values, span):
            if isinstance(piece, str):
                text += piece
            else:
                if text:
                    yield text
                yield piece
                text = ""
    if text:
        yield text


def _pieces(part: str | ast.Name, values: Mapping[str, ast.Expr], span: Span) -> tuple[str | ast.Name, ...]:
    if isinstance(part, str):
        return (part,)
    match values.get(part.id):
        case ast.Template(parts=parts):
            return parts
        case ast.Literal(value=value):
            return (format_value(value),)
        case ast.Name() as name:
            return (name,)
    return (ast.Name(part.id, span=span),)
