"""Copies of syntax trees with other places, or with other nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from qpdsl.grammar import ast
from qpdsl.grammar.source import Span

# The place of a node whose place is not known.
NOWHERE = Span(0, 0)
N = TypeVar("N", bound=ast.Node)


def placed(node: N, span: Span) -> N:
    """The tree with `span` for every place that is not known yet."""
    return spanned(node, lambda old: span if old == NOWHERE else old)


def spanned(node: N, move: Callable[[Span], Span]) -> N:
    """The tree with all its places moved."""
    tree: N = _mapped(node, lambda value: move(value) if isinstance(value, Span) else value)
    return tree


def rewritten(node: N, change: Callable[[Any], Any]) -> N:
    """The tree with every node put through `change`, children first."""
    tree: N = _mapped(node, lambda value: change(value) if isinstance(value, ast.Node) else value)
    return tree


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, tuple):
        return tuple(_mapped(item, change) for item in value)
    if is_dataclass(value) and isinstance(value, ast.Node):
        parts = {field.name: _mapped(getattr(value, field.name), change) for field in fields(value) if field.init}
        return change(replace(value, **parts))
    return change(value)
