"""The candidates of one row of the input, as a tree by their paths, as lines and as rankings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from qpdsl.executor.events.events import CandidateRecord, Expanded, Selected, Valued

Path = tuple[int, ...]
Fate = Literal["open", "kept", "dropped", "finished", "answer"]


@dataclass(slots=True)
class CandidateNode:
    """One candidate. `score` is its latest score, `dropped_by` the operator that dropped it."""

    path: Path
    candidate: CandidateRecord
    round: int = 0
    scores: dict[str, float | None] = field(default_factory=dict)
    values: dict[str, str | float | bool | None] = field(default_factory=dict)
    kept: bool = False
    dropped_by: str | None = None
    answer: bool = False
    children: list[CandidateNode] = field(default_factory=list)

    @property
    def score(self) -> float | None:
        return next(reversed(self.scores.values()), None)

    @property
    def fate(self) -> Fate:
        if self.answer:
            return "answer"
        # A finished solution that lost at the end is shown otherwise than one that was pruned on its way.
        if self.candidate.finished and (self.kept or self.dropped_by is None):
            return "finished"
        if self.dropped_by is not None:
            return "dropped"
        return "kept" if self.kept else "open"


class SearchTree:
    """All candidates of one instance, and the selections among them in order."""

    def __init__(self) -> None:
        self.root = CandidateNode((), CandidateRecord(path=()))
        self.selections: list[Selected] = []
        self._nodes: dict[Path, CandidateNode] = {(): self.root}

    def __len__(self) -> int:
        return len(self._nodes) - 1

    def node(self, path: Path) -> CandidateNode:
        """The node of a path. It is created where no event was about it, as for the arm of a branch."""
        known = len(path)
        while path[:known] not in self._nodes:
            known -= 1
        node = self._nodes[path[:known]]
        for end in range(known + 1, len(path) + 1):
            child = self._nodes[path[:end]] = CandidateNode(path[:end], CandidateRecord(path=path[:end]))
            node.children.append(child)
            node = child
        return node

    def get(self, path: Path) -> CandidateNode | None:
        return self._nodes.get(path)

    def expanded(self, event: Expanded) -> None:
        for candidate in event.candidates:
            node = self.node(candidate.path)
            node.candidate = candidate
            node.round = event.rounds[-1] + 1 if event.rounds else 0

    def valued(self, event: Valued) -> None:
        for path, value in zip(event.paths, event.values, strict=False):
            node = self.node(path)
            if event.scores and not isinstance(value, str):
                # The latest score comes last.
                node.scores.pop(event.column, None)
                node.scores[event.column] = value
            else:
                node.values[event.column] = value

    def selected(self, event: Selected) -> None:
        self.selections.append(event)
        for path in event.kept:
            self.node(path).kept = True
        for path in event.dropped:
            self.node(path).dropped_by = event.operator

    def answered(self, path: Path) -> None:
        if path in self._nodes and path:
            self._nodes[path].answer = True

    def line_of(self, node: CandidateNode) -> list[CandidateNode]:
        """The nodes from the first step to this one."""
        return [self._nodes[node.path[:end]] for end in range(1, len(node.path) + 1)]

    def nodes(self) -> Iterator[CandidateNode]:
        return (node for path, node in self._nodes.items() if path)


@dataclass(frozen=True, slots=True)
class Ranked:
    """A candidate's place in one selection."""

    node: CandidateNode
    kept: bool


@dataclass(frozen=True, slots=True)
class Ranking:
    """One selection: its candidates, those that were kept first, then by score."""

    operator: str
    round: int
    ranked: tuple[Ranked, ...]

    @property
    def kept(self) -> int:
        return sum(candidate.kept for candidate in self.ranked)

    def place(self, path: Path) -> int | None:
        ranked = enumerate(self.ranked, 1)
        return next((place for place, candidate in ranked if candidate.node.path == path), None)


def ranking_of(tree: SearchTree, node: CandidateNode) -> Ranking | None:
    """The selection that dropped the node, else the first of several candidates that kept it, else None."""
    passed = None
    for selection in tree.selections:
        if node.path in selection.dropped:
            return _ranking(tree, selection)
        if passed is None and node.path in selection.kept and len(selection.kept) + len(selection.dropped) > 1:
            passed = selection
    return None if passed is None else _ranking(tree, passed)


def _ranking(tree: SearchTree, selection: Selected) -> Ranking:
    kept = [Ranked(tree.node(path), True) for path in selection.kept]
    dropped = [Ranked(tree.node(path), False) for path in selection.dropped]
    dropped.sort(key=lambda candidate: -(float("-inf") if candidate.node.score is None else candidate.node.score))
    return Ranking(selection.operator, selection.rounds[-1] + 1 if selection.rounds else 0, (*kept, *dropped))


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
