"""What fewer samples of a problem would have come to, from all that were drawn: means over its sets of k of n samples.

Each is unbiased for fresh samples of the problem (Halmos, 1946): what k of them come to is averaged over every set, in
any order. So equal votes, and equal scores, share a set between them, where a run itself takes the first.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from functools import lru_cache
from itertools import combinations

import numpy as np

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]
Bools = np.ndarray[tuple[int, int], np.dtype[np.bool_]]
# All sets of samples are tried up to so many, else as many drawn ones.
MAX_SETS = 1000
_SEED = 20242


def pass_at(n: int, correct: int, k: int) -> float:
    """pass@k: the probability that one of k samples is right, of n samples of which so many are.

    1 - C(n - c, k) / C(n, k) (Chen et al., "Evaluating Large Language Models Trained on Code", 2021, section 2.1).
    Raises ValueError unless 1 <= k <= n and 0 <= correct <= n.
    """
    return 1 - _none_of(n, correct, k)


def pass_all(n: int, correct: int, k: int) -> float:
    """pass^k: the probability that all of k samples are right, of n samples of which so many are.

    C(c, k) / C(n, k) (Yao et al., "τ-bench", arXiv 2406.12045). Raises ValueError as `pass_at` does.
    """
    return _none_of(n, n - correct, k)


def _none_of(n: int, marked: int, k: int) -> float:
    """The probability that none of k samples is a marked one."""
    if not 1 <= k <= n or not 0 <= marked <= n:
        raise ValueError(f"no {k} of {n} samples of which {marked} are right")
    missed = 1.0
    for number in range(n - marked + 1, n + 1):
        missed *= max(1 - k / number, 0.0)
    return missed


def best_at(scores: Sequence[float | None], correct: Sequence[bool], k: int) -> float:
    """best@k: how likely the sample with the best score of k is right. Equal scores share; one without comes last."""
    n = len(scores)
    ranks = [-math.inf if score is None else score for score in scores]
    order = sorted(range(n), key=lambda place: -ranks[place])
    found, start = 0.0, 0
    while start < n:
        end = start
        while end < n and ranks[order[end]] == ranks[order[start]]:
            end += 1
        right = sum(correct[place] for place in order[start:end]) / (end - start)
        # None of those before, and one of these.
        found += right * (math.comb(n - start, k) - math.comb(n - end, k)) / math.comb(n, k)
        start = end
    return found


def consensus_at(answers: Sequence[Hashable], correct: Sequence[bool], k: int) -> float:
    """cons@k, or maj@k: how likely the most frequent answer of k samples is right; None is no answer.

    Exact: the sets of k samples in which an answer leads with m of them are counted by generating functions, those in
    which t others have m too by 1 / (t + 1).
    """
    counts: dict[Hashable, int] = {}
    rights: dict[Hashable, int] = {}
    for answer, is_right in zip(answers, correct, strict=True):
        if answer is not None:
            counts[answer] = counts.get(answer, 0) + 1
            rights[answer] = rights.get(answer, 0) + is_right
    none, found = len(answers) - sum(counts.values()), 0.0
    for answer, right in rights.items():
        if right:
            rivals = tuple(sorted(count for other, count in counts.items() if other != answer))
            found += right / counts[answer] * _leads(counts[answer], rivals, none, k)
    return found


@lru_cache(maxsize=1 << 14)
def _leads(own: int, rivals: tuple[int, ...], none: int, k: int) -> float:
    """How likely an answer of `own` samples leads among k of them all, ties by lot.

    Each sample is in with probability k / n, apart from the others, and what k come to is that given that k are in: so
    no number is large, however many samples there are.
    """
    n = own + sum(rivals) + none
    share = k / n
    found = 0.0
    own_odds = _binomials(own, share)
    for lead in range(1, min(own, k) + 1):
        room = k - lead
        # Answers that cannot have so many are as good as no answers.
        dangerous = [count for count in rivals if count >= lead]
        ways = np.zeros((room // lead + 1, room + 1))
        ways[0] = _padded(_binomials(n - own - sum(dangerous), share), room + 1)
        for count in dangerous:
            odds = _binomials(count, share)
            fewer = np.zeros_like(ways)
            for votes in range(min(lead - 1, room) + 1):
                fewer[:, votes:] += odds[votes] * ways[:, : room + 1 - votes]
            if lead <= room:
                fewer[1:, lead:] += odds[lead] * ways[:-1, : room + 1 - lead]
            ways = fewer
        found += float(own_odds[lead] * (ways[:, room] / np.arange(1, len(ways) + 1)).sum())
    return found / float(_binomials(n, share)[k])


@lru_cache(maxsize=1 << 12)
def _binomials(n: int, share: float) -> Floats:
    """float64 [n + 1]: the probabilities of 0 to n of n."""
    if share == 1.0:
        return np.array([float(j == n) for j in range(n + 1)])
    logs = [
        math.lgamma(n + 1) - math.lgamma(j + 1) - math.lgamma(n - j + 1) + j * math.log(share)
        + (n - j) * math.log1p(-share)
        for j in range(n + 1)
    ]  # fmt: skip
    return np.array([math.exp(log) for log in logs])


def _padded(values: Floats, length: int) -> Floats:
    return np.pad(values[:length], (0, max(length - len(values), 0)))


def weighted_at(answers: Sequence[Hashable], weights: Sequence[float | None], correct: Sequence[bool], k: int) -> float:
    """weighted@k: how likely the answer with the greatest sum of weights of k samples is right.

    No closed form is known: all sets are tried where there are 1,000 at the most, else 1,000 that are drawn, the same
    for the same n and k. As in `vote`, samples are in their order, and a sample without a weight has no vote.
    """
    # Only now, as it loads torch.
    from qpdsl.executor.verifiers.verifier import SCORE_DIGITS

    chosen = _sets(len(answers), k)
    voting = [answer is not None and weight is not None for answer, weight in zip(answers, weights, strict=True)]
    numbers = {answer: number for number, answer in enumerate(dict.fromkeys(answers))}
    ballots = np.zeros((len(answers), len(numbers)))
    for place, answer in enumerate(answers):
        ballots[place, numbers[answer]] = voting[place]
    heavy = np.array([weight or 0.0 for weight in weights])
    totals = np.round(chosen @ (ballots * heavy[:, None]), SCORE_DIGITS)
    totals[chosen @ ballots == 0] = -1.0
    # Where one answer leads, all samples of which are right or none, nothing else is to be looked at.
    shares = (np.array(correct, dtype=float) @ ballots) / np.maximum(ballots.sum(axis=0), 1)
    leads = totals == totals.max(axis=1, keepdims=True)
    plain = (leads.sum(axis=1) == 1) & np.isin(shares[totals.argmax(axis=1)], (0.0, 1.0))
    right = float(shares[totals.argmax(axis=1)][plain].sum())
    for own, leading in zip(chosen[~plain], leads[~plain], strict=True):
        voters = [place for place in np.flatnonzero(own).tolist() if voting[place] and leading[numbers[answers[place]]]]
        same = [place for place in voters if answers[place] == answers[voters[0]]]
        right += bool(same) and correct[max(same, key=lambda place: heavy[place])]
    return right / len(chosen)


@lru_cache(maxsize=64)
def _sets(n: int, k: int) -> Bools:
    """bool [sets, n]: sets of k of n samples."""
    if math.comb(n, k) <= MAX_SETS:
        places = np.array(list(combinations(range(n), k)))
    else:
        random = np.random.Generator(np.random.Philox(_SEED))
        places = random.permuted(np.tile(np.arange(n), (MAX_SETS, 1)), axis=1)[:, :k]
    chosen = np.zeros((len(places), n), dtype=bool)
    np.put_along_axis(chosen, places, True, axis=1)
    return chosen
