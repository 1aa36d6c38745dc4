"""What a row's search says when it is over: where it went wrong, how the vote stood, how near it was to another end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from qpdsl.tui.state.run_state import RowState
from qpdsl.tui.state.search import CandidateNode, Key, Ranking, SearchTree, Votes, rankings, right_candidates

# A step that a verifier finds wrong rather than right (Zheng et al., "ProcessBench", 2024, section 4).
_WRONG = 0.5


@dataclass(frozen=True, slots=True)
class Fall:
    """The first step of a solution, `place` of `steps` from 1, that was found wrong: its score and that before it."""

    node: CandidateNode
    place: int
    steps: int
    before: float | None
    score: float


def fall_of(tree: SearchTree) -> Fall | None:
    """Where the score of the answer's solution first fell below one half, among the steps that have one.

    None where it never did, where there is no answer, and where scores are no shares.
    """
    answering = tree.answering
    if answering is None or tree.scaled:
        return None
    steps = [(step, step.score) for step in answering.line() if step.score is not None and not step.heads]
    before: float | None = None
    for place, (step, score) in enumerate(steps, 1):
        assert score is not None
        if score < _WRONG:
            return Fall(step, place, len(steps), before, score)
        before = score
    return None


@dataclass(frozen=True, slots=True)
class Highlights:
    """What is told of candidates beside what became of them: which are `right`, and which lead the `way` to the answer.

    `fell` is the first step of the answer that its verifier found wrong, `lost` a right answer, where it was dropped.
    """

    right: frozenset[Key] = field(default_factory=frozenset)
    way: frozenset[Key] = field(default_factory=frozenset)
    fell: Fall | None = None
    lost: CandidateNode | None = None

    @classmethod
    def of(cls, tree: SearchTree, row: RowState | None) -> Highlights:
        way = () if tree.answering is None else tree.answering.line()
        right: list[CandidateNode] = []
        if row is not None and row.correct is not None and row.reference:
            right = right_candidates(tree, row.reference, row.answer)
        return cls(
            frozenset(node.key for node in right),
            frozenset(node.key for node in way),
            fall_of(tree) if row is not None and row.correct is False else None,
            None if row is None or row.lost is None else row.lost.node,
        )


@dataclass(frozen=True, slots=True)
class VoteCourse:
    """How a vote went: `decided` is after how many of the `rows` no other answer could win any more.

    `lead` is the winner's total over that of the second. `given_up` are samples that nobody waited for.
    """

    tally: tuple[Votes, ...]
    rows: int
    decided: int
    lead: float
    given_up: int


def last_vote(tree: SearchTree) -> VoteCourse | None:
    """The course of the latest vote of a row; rows count in the order of their paths, each by its weight."""
    votes = [ranking for ranking in rankings(tree) if ranking.tally]
    if not votes:
        return None
    ranking = votes[-1]
    tally = ranking.tally
    cast = list(_cast(ranking))
    left = sum(weight for _, weight in cast)
    totals: dict[str, float] = {}
    decided = 0
    for number, (answer, weight) in enumerate(cast, 1):
        left -= weight
        if answer is not None:
            totals[answer] = totals.get(answer, 0.0) + weight
        decided = number
        first, second = sorted((*totals.values(), 0.0, 0.0), reverse=True)[:2]
        if first - second > left + 1e-9:
            break
    answered = [own.total for own in tally if own.answer is not None]
    lead = answered[0] - (answered[1] if len(answered) > 1 else 0.0) if answered else 0.0
    return VoteCourse(tally, len(cast), decided, lead, tree.given_up)


def _cast(ranking: Ranking) -> Iterator[tuple[str | None, float]]:
    """The votes in the order of the paths: the answer, None for none, and its weight."""
    selection = ranking.selection
    paths = (*selection.kept, *selection.dropped)
    weights = selection.weights or (1.0,) * len(selection.keys)
    for _, key, weight in sorted(zip(paths, selection.keys, weights, strict=False), key=lambda vote: vote[0]):
        counts = key is not None and weight is not None
        yield (str(key), weight or 0.0) if counts else (None, 1.0 if weight is None else weight)


@dataclass(frozen=True, slots=True)
class CutMargin:
    """How far what was kept last stood above what was dropped first, the least of all rounds; `ties` were equal."""

    ranking: Ranking
    least: float
    cuts: int
    ties: int


def margin_at_the_cut(tree: SearchTree) -> CutMargin | None:
    """Over all selections of a row that cut an order; None where there is none."""
    margins = []
    for ranking in rankings(tree):
        if ranking.cuts and ranking.kept < len(ranking.ranked):
            kept, dropped = ranking.ranked[ranking.kept - 1].key, ranking.ranked[ranking.kept].key
            if kept is not None and dropped is not None:
                margins.append((kept - dropped, ranking))
    if not margins:
        return None
    least, ranking = min(margins, key=lambda one: one[0])
    return CutMargin(ranking, least, len(margins), sum(margin == 0 for margin, _ in margins))
