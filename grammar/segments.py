"""The parts that a stage or declaration may be broken into: what it begins with, its options and its clauses."""

from __future__ import annotations

from qpdsl.grammar.pieces import Node, Piece, first
from qpdsl.grammar.words import CLAUSES


def segments(nodes: list[Node]) -> list[list[Node]]:
    """The nodes, parted before each option and clause. A line that begins with one goes on with what is above it."""
    parts: list[list[Node]] = [[]]
    for index in range(len(nodes)):
        if index and _begins(nodes, index):
            parts.append([])
        parts[-1].append(nodes[index])
    return parts


def _begins(nodes: list[Node], index: int) -> bool:
    node = nodes[index]
    if not isinstance(node, Piece) or node.kind != "word":
        return False
    following = nodes[index + 1] if index + 1 < len(nodes) else None
    word, before = first(nodes[0]).text, first(nodes[index - 1]).text
    if isinstance(following, Piece) and following.text == "=":
        return (word != "model" or index > 2) and word != "extract" and (before != "prefer" or index == 1)
    if node.text == "draft":
        # A name too: of a model, a column, a parameter.
        named = before in CLAUSES or before == "draft"
        return index > 1 and word in ("generate", "program") and following is not None and not named
    if node.text == "like":
        return index > 1 and word == "program" and following is not None and before != "draft"
    return node.text in CLAUSES
