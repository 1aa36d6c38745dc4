"""Substitution of values for names in stages: a called program with its arguments in the place of its parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from qpdsl.grammar import ast
from qpdsl.grammar.ast.walk import walk
from qpdsl.grammar.source import Span
from qpdsl.grammar.words import COMPARED
from qpdsl.planner.plan.evaluate import evaluate
from qpdsl.planner.plan.logical import LogicalPlan
from qpdsl.planner.plan.options import spelt
from qpdsl.planner.values.value import format_value, value_at

# A part of a template.
_Piece = str | ast.Name | ast.Path


def substitute(stage: ast.Stage, values: Mapping[str, ast.Expr], span: Span | None) -> ast.Stage:
    """The stage with every name in `values` replaced. Values keep their spans; every other node gets `span`, if given.

    A value whose name stands in a string or begins a path must be a name, a path, a string, or known now.
    """
    substituted: ast.Stage = _node(stage, values, span)
    return substituted


def substituted_plan(plan: LogicalPlan, values: Mapping[str, ast.Expr]) -> LogicalPlan:
    """The plan with every name in `values` replaced in the expressions of its operators, under the same conditions."""
    substituted: LogicalPlan = _node(plan, values, None)
    return substituted


def with_draws(stage: ast.Stage, numbers: Iterator[int]) -> ast.Stage:
    """The stage with the next of the numbers in each `random()` of its own; stages inside it stay as they are."""
    if not any(isinstance(node, ast.Apply) and node.function == "random" for node in walk(stage)):
        return stage
    numbered: ast.Stage = _with_draws(stage, numbers)
    return numbered


def _with_draws(value: Any, numbers: Iterator[int], *, inside: bool = False) -> Any:
    if isinstance(value, tuple):
        return tuple(_with_draws(item, numbers, inside=True) for item in value)
    if not isinstance(value, ast.Node) or (inside and isinstance(value, ast.Stage)):
        return value
    if isinstance(value, ast.Apply) and value.function == "random":
        return replace(value, draw=next(numbers))
    parts = {part.name: _with_draws(getattr(value, part.name), numbers, inside=True) for part in fields(value)}
    return replace(value, **parts)


def names_in_strings(stages: tuple[ast.Stage, ...]) -> set[str]:
    """The names that strings interpolate, and those that paths begin with."""
    templates = [node for node in walk(stages) if isinstance(node, ast.Template)]
    inserted = {part.id for template in templates for part in template.parts if isinstance(part, ast.Name)}
    return inserted | {node.base.id for node in walk(stages) if isinstance(node, ast.Path)}


def _node(value: Any, values: Mapping[str, ast.Expr], span: Span | None) -> Any:
    if isinstance(value, tuple):
        return tuple(_node(item, values, span) for item in value)
    if isinstance(value, ast.Tournament):
        # There these are the rows, whatever the program calls its parameters.
        values = {name: given for name, given in values.items() if name not in COMPARED}
    if isinstance(value, ast.Template):
        return ast.Template(tuple(_parts(value, values, span)), span=span or value.span)
    if isinstance(value, Span):
        return span or value
    if isinstance(value, ast.Name) and value.id in values:
        return values[value.id]
    if isinstance(value, ast.Path) and value.base.id in values:
        return _at_path(values[value.base.id], value.steps, span)
    return _rebuilt(value, values, span) if is_dataclass(value) else value


def _rebuilt(node: Any, values: Mapping[str, ast.Expr], span: Span | None) -> Any:
    return replace(node, **{part.name: _node(getattr(node, part.name), values, span) for part in fields(node)})


def _at_path(value: ast.Expr, steps: tuple[str | int, ...], span: Span | None) -> ast.Expr:
    """What stands at a path of a value."""
    match value:
        case ast.Name():
            return ast.Path(value, steps, span=span or value.span)
        case ast.Path(base=base, steps=before):
            return ast.Path(base, (*before, *steps), span=span or base.span)
    return spelt(value_at(evaluate(value, {}), steps), value.span)


def _parts(template: ast.Template, values: Mapping[str, ast.Expr], span: Span | None) -> Iterator[_Piece]:
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


def _pieces(part: _Piece, values: Mapping[str, ast.Expr], span: Span | None) -> tuple[_Piece, ...]:
    if isinstance(part, str):
        return (part,)
    match _node(part, values, span):
        case ast.Template(parts=parts):
            return parts
        case ast.Name() | ast.Path() as name:
            return (name,)
        case fixed:
            return (format_value(evaluate(fixed, {})),)
