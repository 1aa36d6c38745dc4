"""Syntax trees made outside the parser: their places filled in, their depth measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from qpdsl.api.places import NOWHERE
from qpdsl.grammar import ast
from qpdsl.grammar.source import Span

N = TypeVar("N", bound=ast.Node)


def placed(node: N, span: Span) -> N:
    """The tree with `span` for every place that is not known yet."""
    return spanned(node, lambda old: span if old == NOWHERE else old)


def spanned(node: N, move: Callable[[Span], Span]) -> N:
    """The tree with all its places moved."""
    made: N = _mapped(node, lambda value: move(value) if isinstance(value, Span) else value)
    return made


def rewritten(node: N, change: Callable[[Any], Any]) -> N:
    """The tree with every node put through `change`, children first."""
    made: N = _mapped(node, lambda value: change(value) if isinstance(value, ast.Node) else value)
    return made


def depth(node: ast.Node, limit: int) -> int:
    """How deep a tree nests, counted up to `limit`."""
    level = [node]
    for found in range(limit):
        level = [child for parent in level for child in children(parent)]
        if not level:
            return found
    return limit


def children(node: ast.Node) -> Iterator[ast.Node]:
    for field in fields(node):
        value = getattr(node, field.name)
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, ast.Node):
                yield item


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, tuple):
        return tuple(_mapped(item, change) for item in value)
    if is_dataclass(value) and isinstance(value, ast.Node):
        parts = {field.name: _mapped(getattr(value, field.name), change) for field in fields(value) if field.init}
        return change(replace(value, **parts))
    return change(value)
