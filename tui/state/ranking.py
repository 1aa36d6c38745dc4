"""One selection among the candidates of a search, as a ranking."""

from __future__ import annotations

from dataclasses import dataclass

from qpdsl.executor.events.events import Selected
from qpdsl.tui.state.search import CandidateNode, Path, SearchTree


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
