"""The candidates of one row of the input, as a tree by their paths."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal as OneOf

from qpdsl.executor.events.events import Candidate, Expanded, Selected, Valued

Path = tuple[int, ...]
Fate = OneOf["open", "kept", "dropped", "finished", "answer"]


@dataclass(slots=True)
class CandidateNode:
    """One candidate. `score` is its latest score, `dropped_by` the operator that dropped it."""

    path: Path
    candidate: Candidate
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
        self.root = CandidateNode((), Candidate(path=()))
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
            child = self._nodes[path[:end]] = CandidateNode(path[:end], Candidate(path=path[:end]))
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
