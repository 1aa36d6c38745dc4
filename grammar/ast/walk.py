"""How deep a part of the syntax tree nests.

MERGED: Which stages make columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from qpdsl.grammar import ast

MAX_DEPTH = 64


def is_shallow(node: ast.Node) -> bool:
    """Whether the node nests at most `MAX_DEPTH` deep, not counting the stages of a block."""
    level = [node]
    for _ in range(MAX_DEPTH + 1):
        level = [child for parent in level for child in _children(parent)]
        if not level:
            return True
    return False


def _children(node: Any) -> Iterator[ast.Node]:
    """The nodes right below a node, but for the stages of a block, which are checked on their own."""
    for name in type(node).__slots__:
        value = getattr(node, name)
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, ast.Node) and name != "body":
                yield item


def makers(stages: tuple[ast.Stage, ...]) -> Iterator[tuple[str, ast.Stage]]:
    """The columns that stages make, with the stage, in reading order."""
    for stage in stages:
        if isinstance(stage, ast.Extract):
            yield stage.column.id, stage
        elif isinstance(stage, ast.Score):
            yield (stage.into.id if stage.into else "score"), stage
        elif isinstance(stage, ast.Generate | ast.Call) and stage.into:
            yield stage.into.id, stage
        elif isinstance(stage, ast.Repeat | ast.Peek):
            yield from makers(stage.body)
        elif isinstance(stage, ast.Branch):
            for arm in stage.arms:
                yield from makers(arm)
