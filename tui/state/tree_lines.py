"""A search tree as lines from the top down."""

from __future__ import annotations

from dataclasses import dataclass

from qpdsl.tui.state.search import CandidateNode, Path, SearchTree


@dataclass(frozen=True, slots=True)
class TreeLine:
    """A node and the strokes before it."""

    node: CandidateNode
    strokes: str


def flattened(tree: SearchTree, folded: frozenset[Path] | set[Path], *, living: bool) -> list[TreeLine]:
    """The nodes, parents before children. `living` leaves out nodes that were dropped with all nodes below them."""
    lines: list[TreeLine] = []
    lives = _living(tree) if living else None
    # From the last to the first, as a stack gives them back.
    stack = _pushed(tree.root, "", lives, top=True)
    while stack:
        node, first, rest = stack.pop()
        lines.append(TreeLine(node, first))
        if node.path not in folded:
            stack.extend(_pushed(node, rest, lives))
    return lines


def _pushed(
    node: CandidateNode, rest: str, lives: set[Path] | None, *, top: bool = False
) -> list[tuple[CandidateNode, str, str]]:
    children = [child for child in node.children if lives is None or child.path in lives]
    entries = []
    for index, child in enumerate(children):
        closes = index == len(children) - 1
        lead, under = ("", "") if top else ("└ ", "  ") if closes else ("├ ", "│ ")
        entries.append((child, rest + lead, rest + under))
    return entries[::-1]


def _living(tree: SearchTree) -> set[Path]:
    paths: set[Path] = set()
    for node in tree.nodes():
        if node.dropped_by is None:
            paths.update(node.path[:end] for end in range(1, len(node.path) + 1))
    return paths
