"""Walks over the syntax tree: its nodes, the stages of its blocks, the columns that stages make, and how deep it nests.

Code that has to visit every node or every stage uses these walks. Where the order or the nesting of the blocks matters
otherwise (a printer, a data-flow analysis), it goes through them by itself, with `blocks`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any, cast

from qpdsl.grammar import ast
from qpdsl.grammar.ast.stage import fields_in_order

MAX_DEPTH = 64


def children(node: ast.Node) -> Iterator[ast.Node]:
    """The nodes directly below a node, in reading order."""
    for name in fields_in_order(type(node)):
        yield from _nodes(getattr(node, name))


def walk(value: Any) -> Iterator[ast.Node]:
    """All nodes in a node, or in nested tuples of them, itself first, in reading order."""
    for node in _nodes(value):
        yield node
        for name in fields_in_order(type(node)):
            yield from walk(getattr(node, name))


def blocks(stage: ast.Stage) -> tuple[tuple[ast.Stage, ...], ...]:
    """The blocks of stages directly inside a stage, but for an `else` that is not there."""
    found: list[tuple[ast.Stage, ...]] = []
    for name, part in ast.parts(type(stage)):
        if part.kind == "arms":
            found += getattr(stage, name)
        elif part.kind == "block" and (getattr(stage, name) or not part.lead):
            found.append(getattr(stage, name))
    return tuple(found)


def with_block(stage: ast.Stage, block: tuple[ast.Stage, ...]) -> ast.Stage:
    """The stage with this as its (first) block."""
    changes: dict[str, Any] = {
        name: block for name, part in ast.parts(type(stage)) if part.kind == "block" and not part.lead
    }
    return replace(stage, **changes)


def walk_stages(stages: tuple[ast.Stage, ...]) -> Iterator[ast.Stage]:
    """The stages with those in their blocks, each before what is inside it, in reading order."""
    for stage in stages:
        yield stage
        for block in blocks(stage):
            yield from walk_stages(block)


def column_name(stage: ast.Stage) -> ast.Name | None:
    """The name, as written, of the column that a stage makes; None where it makes none or does not name it."""
    field = _made_field(cast(Any, type(stage)))
    return None if field is None else getattr(stage, field)


@cache
def _made_field(kind: Any) -> str | None:
    return next((name for name, part in ast.parts(kind) if part.kind == "made"), None)


def made_column(stage: ast.Stage) -> str | None:
    """The column that a stage makes, None where it makes none. A `score` without `into` makes `score`."""
    if isinstance(stage, ast.Score):
        return stage.made
    name = column_name(stage)
    return None if name is None else name.id


def column_makers(stages: tuple[ast.Stage, ...]) -> Iterator[tuple[str, ast.Stage]]:
    """The columns that stages make, those in blocks too, each with its stage, in reading order."""
    for stage in walk_stages(stages):
        column = made_column(stage)
        if column is not None:
            yield column, stage


def is_shallow(node: ast.Node) -> bool:
    """Whether the node nests at most `MAX_DEPTH` deep. The stages of a block do not count: each is checked itself."""
    level = [node]
    for _ in range(MAX_DEPTH + 1):
        level = [child for parent in level for child in children(parent) if not isinstance(child, ast.Stage)]
        if not level:
            return True
    return False


def _nodes(value: Any) -> Iterator[ast.Node]:
    if isinstance(value, ast.Node):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from _nodes(part)
