"""Whether scores tell right answers from wrong ones, and what more samples would have come to, over all graded rows."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import comb

from qpdsl.tui.state.search import Key, SearchTree, graded_candidates, is_share

_BINS = 5


@dataclass(frozen=True, slots=True)
class GradedAnswer:
    """A candidate whose answer is known, its scores by column, and whether the row took it."""

    row: str
    key: Key
    right: bool
    scores: tuple[tuple[str, float], ...]
    taken: bool


def graded_answers(row: str, tree: SearchTree, reference: str, answer: str | None) -> tuple[GradedAnswer, ...]:
    if answer is None:
        return ()
    return tuple(
        GradedAnswer(
            row,
            node.key,
            right,
            tuple((name, score) for name, score in node.scores.items() if score is not None),
            node.answer,
        )
        for node, right in graded_candidates(tree, reference, answer)
        if not node.copied
    )


@dataclass(frozen=True, slots=True)
class Bin:
    """Answers with scores from `low` up to `high`: how many, their mean score, and the share that is right."""

    low: float
    high: float
    answers: int
    score: float
    right: float


@dataclass(frozen=True, slots=True)
class Misled:
    """A row in which a wrong answer stood above the best right one."""

    row: str
    key: Key
    right: float
    wrong: float
    taken: bool


@dataclass(frozen=True, slots=True)
class VerifierQuality:
    """How well a column of scores tells right answers from wrong ones.

    `auc`: the chance that a right answer of any row stands above a wrong one of any, equal ones half (Hanley and
    McNeil, 1982); None without both. Of the `pairs` of a right and a wrong answer of one row, `ranked` stand so and
    `tied` are equal. `bins` are for scores that are shares, and `error` is by how much their means miss the shares that
    are right, weighted by answers (expected calibration error: Naeini et al., 2015).
    """

    column: str
    answers: int
    right: int
    auc: float | None
    pairs: int
    ranked: int
    tied: int
    bins: tuple[Bin, ...]
    error: float | None
    misled: tuple[Misled, ...]


def qualities_of(answers: Iterable[GradedAnswer]) -> list[VerifierQuality]:
    """One of each column of scores."""
    by_column: dict[str, list[tuple[GradedAnswer, float]]] = {}
    for answer in answers:
        for column, score in answer.scores:
            by_column.setdefault(column, []).append((answer, score))
    return [_quality(column, own) for column, own in by_column.items()]


def _quality(column: str, scored: Sequence[tuple[GradedAnswer, float]]) -> VerifierQuality:
    rights = [score for answer, score in scored if answer.right]
    wrongs = [score for answer, score in scored if not answer.right]
    above, equal = _pairs(rights, wrongs)
    pairs = ranked = tied = 0
    misled = []
    rows: dict[str, list[tuple[GradedAnswer, float]]] = {}
    for answer, score in scored:
        rows.setdefault(answer.row, []).append((answer, score))
    for row, own in rows.items():
        right = [(score, answer.key) for answer, score in own if answer.right]
        wrong = [(score, answer.taken) for answer, score in own if not answer.right]
        if right and wrong:
            own_above, own_equal = _pairs([score for score, _ in right], [score for score, _ in wrong])
            pairs, ranked, tied = pairs + len(right) * len(wrong), ranked + own_above, tied + own_equal
            best, worst = max(right), max(wrong)
            if worst[0] > best[0]:
                misled.append(Misled(row, best[1], best[0], worst[0], any(taken for _, taken in wrong)))
    bins = _bins(scored)
    return VerifierQuality(
        column,
        len(scored),
        len(rights),
        (above + equal / 2) / (len(rights) * len(wrongs)) if rights and wrongs else None,
        pairs,
        ranked,
        tied,
        bins,
        sum(own.answers * abs(own.score - own.right) for own in bins) / len(scored) if bins else None,
        tuple(sorted(misled, key=lambda one: (not one.taken, one.right - one.wrong))),
    )


def _pairs(rights: Sequence[float], wrongs: Sequence[float]) -> tuple[int, int]:
    """How many pairs have the right one above, and equal."""
    order = sorted(wrongs)
    above = sum(bisect_left(order, score) for score in rights)
    return above, sum(bisect_right(order, score) for score in rights) - above


def _bins(scored: Sequence[tuple[GradedAnswer, float]]) -> tuple[Bin, ...]:
    if not all(is_share((score, score)) for _, score in scored):
        return ()
    bins = []
    for at in range(_BINS):
        own = [(answer, score) for answer, score in scored if min(int(score * _BINS), _BINS - 1) == at]
        if own:
            mean = sum(score for _, score in own) / len(own)
            right = sum(answer.right for answer, _ in own) / len(own)
            bins.append(Bin(at / _BINS, (at + 1) / _BINS, len(own), mean, right))
    return tuple(bins)


@dataclass(frozen=True, slots=True)
class Width:
    """`passed`: the chance that one of `samples` answers of a row is right, over all rows with known answers.

    1 - C(n - c, k) / C(n, k) (Chen et al., 2021, section 2.1). A row with fewer answers counts with all that it has.
    """

    samples: int
    passed: float


def widths(answers: Iterable[Sequence[GradedAnswer]]) -> list[Width]:
    """pass@1, 2, 4 and so on up to the most answers that a row has, of those beside the one that it took.

    What another strategy of a budget had tried before, as greedy decoding, is no sample of the last.
    """
    beside = [_beside_taken(own) for own in answers if own]
    counts = [(len(own), sum(answer.right for answer in own)) for own in beside]
    most = max((n for n, _ in counts), default=0)
    sizes = [size for size in (1 << power for power in range(16)) if size < most]
    return [
        Width(k, sum(1 - comb(n - c, min(k, n)) / comb(n, min(k, n)) for n, c in counts) / len(counts))
        for k in ([*sizes, most] if most else [])
    ]


def _beside_taken(answers: Sequence[GradedAnswer]) -> Sequence[GradedAnswer]:
    taken = [answer.key[0] for answer in answers if answer.taken]
    return [answer for answer in answers if answer.key[0] == taken[-1]] if taken else answers


def wider_cuts(places: Iterable[int]) -> list[tuple[int, int]]:
    """Widths of a cut, and how many of the right answers that were lost at these places each would have kept."""
    order = sorted(places)
    return [(place, bisect_right(order, place)) for place in dict.fromkeys(order)]
