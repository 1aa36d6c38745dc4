"""A search tree as lines from the top down, and a round of it as a ranking."""

from __future__ import annotations

from dataclasses import dataclass

from qpdsl.executor.events.events import Selected
from qpdsl.tui.state.search import Node, Path, SearchTree


@dataclass(frozen=True, slots=True)
class TreeLine:
    """A node and the strokes before it."""

    node: Node
    strokes: str


def flattened(tree: SearchTree, folded: frozenset[Path] | set[Path], *, living: bool) -> list[TreeLine]:
    """The nodes, parents before children; `living` leaves out those that were dropped with all that is below them."""
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


def _pushed(node: Node, rest: str, lives: set[Path] | None, *, top: bool = False) -> list[tuple[Node, str, str]]:
    children = [child for child in node.children if lives is None or child.path in lives]
    found = []
    for index, child in enumerate(children):
        closes = index == len(children) - 1
        lead, under = ("", "") if top else ("└ ", "  ") if closes else ("├ ", "│ ")
        found.append((child, rest + lead, rest + under))
    return found[::-1]


def _living(tree: SearchTree) -> set[Path]:
    found: set[Path] = set()
    for node in tree.nodes():
        if node.dropped_by is None:
            found.update(node.path[:end] for end in range(1, len(node.path) + 1))
    return found


@dataclass(frozen=True, slots=True)
class Ranked:
    """A candidate's place in one selection."""

    node: Node
    kept: bool


@dataclass(frozen=True, slots=True)
class Ranking:
    """One selection: its candidates, those that were kept first, then by score."""

    operator: str
    round: int
    ranked: tuple[Ranked, ...]

    @property
    def kept(self) -> int:
        return sum(each.kept for each in self.ranked)

    def place(self, path: Path) -> int | None:
        return next((place for place, each in enumerate(self.ranked, 1) if each.node.path == path), None)


def ranking_of(tree: SearchTree, node: Node) -> Ranking | None:
    """The latest selection that let the node go, or else the first that it came through."""
    meant = None
    for selection in tree.selections:
        if node.path in selection.dropped:
            return _ranking(tree, selection)
        if meant is None and node.path in selection.kept and len(selection.kept) + len(selection.dropped) > 1:
            meant = selection
    return None if meant is None else _ranking(tree, meant)


def _ranking(tree: SearchTree, selection: Selected) -> Ranking:
    kept = [Ranked(tree.node(path), True) for path in selection.kept]
    dropped = [Ranked(tree.node(path), False) for path in selection.dropped]
    dropped.sort(key=lambda each: -(each.node.score if each.node.score is not None else float("-inf")))
    return Ranking(selection.operator, selection.rounds[-1] + 1 if selection.rounds else 0, (*kept, *dropped))
