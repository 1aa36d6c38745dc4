"""How deep a part of the syntax tree nests."""

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
