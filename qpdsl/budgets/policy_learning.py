"""Learning a cascade: which strategy a problem is tried by first, what follows, and what to expect of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import fmean

import numpy as np

from qpdsl.budgets.observations import Floats, Observations, Table
from qpdsl.planner.plan.budget_policy import Turn
from qpdsl.runs.statistics import Interval, bootstrap_interval, wilson

Bools = np.ndarray[tuple[int], np.dtype[np.bool_]]
Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]

# A bin has at least so many rows, but for equal ones, and there are at most so many bins.
MIN_ROWS = 15
MAX_BINS = 24
# The weights of a bin's neighbours and of itself in its average.
_SMOOTH = (0.25, 0.5, 0.25)
# How often turns are found anew for the rows alone that come to them.
_ROUNDS = 3
# Prices are looked for between these, in right answers for the spend of the cheapest strategy, by so many halvings.
_PRICES = (1e-6, 10.0)
_HALVINGS = 24
# What a simpler cascade may take of what the other takes.
_MORE = 1.01
# How many prices, and how many budgets, lead from the most right cascade to the cheapest.
_STEPS = 24
# How many places for a cut are tried where two prices differ.
_PLACES = 64
_FEW_PLACES = 16
_FOLDS = 5


@dataclass(frozen=True)
class Cascade:
    """The table of a `BudgetPolicy`, by numbers of strategies."""

    first: int
    turns: Mapping[int, Turn] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Replay:
    """What a cascade comes to, each [rows]: 1 for a right answer, what was spent, and the strategy that a row ended by.

    `reached` has, by the number of a strategy, which rows are tried by it.
    """

    correct: Floats
    spend: Floats
    last: Numbers
    reached: Mapping[int, Bools]


def replayed(cascade: Cascade, seen: Observations) -> Replay:
    """What a cascade would have come to on the rows of `seen`, whose strategies it names."""
    rows = len(seen.problems)
    last = np.full(rows, cascade.first, dtype=np.int64)
    spend = seen.spend[:, cascade.first].copy()
    reached = {cascade.first: np.ones(rows, dtype=bool)}
    # A turn leads to later strategies alone, so that one pass over them in order follows every row to its end.
    for own in range(len(seen.ways)):
        turn, here = cascade.turns.get(own), last == own
        if turn is None or not here.any():
            continue
        follows = following(turn, seen.support[:, own])
        for later in {way for way in turn.next if way is not None}:
            goes_on = here & (follows == later)
            spend[goes_on] += seen.further(own, later)[goes_on]
            last[goes_on] = later
            reached[later] = reached.get(later, False) | goes_on
    return Replay(seen.correct[np.arange(rows), last], spend, last, reached)


def following(turn: Turn, support: Floats) -> Numbers:
    """int64 [rows]: the strategy that follows at each support, -1 for the end; see `Turn.after`."""
    places = np.searchsorted(np.asarray(turn.cuts, dtype=np.float64), support, side="right")
    return np.array([-1 if way is None else way for way in turn.next], dtype=np.int64)[places]


@dataclass(frozen=True, eq=False)
class SupportBins:
    """`cuts` ascend; a row with support of at least the first k of them is in bin k. `places`: each row's bin."""

    cuts: tuple[float, ...]
    places: Numbers

    @classmethod
    def of(cls, support: Floats) -> SupportBins:
        """Bins of as many rows each. Equal support is never told apart, so that a bin may have more."""
        count = min(len(support) // MIN_ROWS, MAX_BINS)
        ordered = np.sort(support)
        bounds = {float(ordered[len(ordered) * number // count]) for number in range(1, count)} - {float(ordered[0])}
        cuts = tuple(sorted(cut_below(bound, ordered) for bound in bounds))
        return cls(cuts, np.searchsorted(np.asarray(cuts, dtype=np.float64), support, side="right").astype(np.int64))

    def averages(self, values: Table, counted: Bools) -> Table:
        """float64 [bins, columns]: means over the counted rows of each bin, averaged with those of its neighbours.

        A bin with too few of them has the means over all rows.
        """
        few, means = self._smoothed(values, counted)
        if few.any():
            means[few] = self._smoothed(values, np.ones_like(counted))[1][few]
        return means

    def _smoothed(self, values: Table, counted: Bools) -> tuple[Bools, Table]:
        bins = len(self.cuts) + 1
        sums = np.zeros((bins, values.shape[1]))
        np.add.at(sums, self.places[counted], values[counted])
        rows = np.bincount(self.places[counted], minlength=bins).astype(np.float64)
        weights = _with_neighbours(rows[:, None])
        return weights[:, 0] < MIN_ROWS / 2, _with_neighbours(sums) / np.maximum(weights, 1e-12)


def cut_below(bound: float, ordered: Floats) -> float:
    """A cut that tells `bound` from the next lower one of the ascending values, half-way between the two."""
    place = int(np.searchsorted(ordered, bound, side="left"))
    lower = float(ordered[place - 1]) if place else bound
    return (lower + bound) / 2 if np.isfinite(lower) else bound


def _with_neighbours(values: Table) -> Table:
    before, own, after = _SMOOTH
    smoothed = own * values
    smoothed[1:] += before * values[:-1]
    smoothed[:-1] += after * values[1:]
    return smoothed


class OverBudget(ValueError):
    """No strategy keeps the budget. `way` is the number of the cheapest, `spend` what it takes on average."""

    def __init__(self, way: int, spend: float) -> None:
        super().__init__(f"the cheapest strategy takes {spend:,.4g} a problem")
        self.way = way
        self.spend = spend


def learned(seen: Observations, budget: float) -> Cascade:
    """The cascade with the most right answers on the rows of `seen` whose mean spend there is at most `budget`.

    The same for the same observations. Raises OverBudget.
    """
    spends = seen.spend.mean(axis=0)
    if spends[0] > budget:
        raise OverBudget(0, float(spends[0]))
    bins = [SupportBins.of(seen.support[:, way]) for way in range(len(seen.ways))]
    firsts = [way for way in _worthwhile(seen) if spends[way] <= budget]
    return _best((_begun_by(first, seen, bins, budget) for first in firsts), seen)


def cheaper_and_cheaper(seen: Observations) -> Iterator[Cascade]:
    """Cascades from the most right on the rows of `seen` to the cheapest strategy alone, each for less than before.

    The same for the same observations.
    """
    bins = [SupportBins.of(seen.support[:, way]) for way in range(len(seen.ways))]
    least = min((float(spend) for spend in seen.spend.mean(axis=0) if spend > 0), default=1.0)
    low, high = (price / least for price in _PRICES)
    prices = [float(price) for price in np.geomspace(low, high, _STEPS)]
    priced = [
        [_Priced.of(_at_price(seen, bins, price, first), seen) for price in prices] for first in _worthwhile(seen)
    ]
    last = _simpler(_most_right(own for row in priced for own in row).cascade, seen, low, float("inf"))
    yield last
    for budget in np.geomspace(max(_spend(last, seen), least), least, _STEPS)[1:-1]:
        found = _simpler(_between(priced, seen, float(budget)), seen, low, float(budget))
        if found != last:
            last = found
            yield last
    if last != Cascade(0):
        yield Cascade(0)


@dataclass(frozen=True)
class _Priced:
    """A cascade at some price, with its share of right answers and its mean spend."""

    cascade: Cascade
    right: float
    spend: float

    @classmethod
    def of(cls, cascade: Cascade, seen: Observations) -> _Priced:
        replay = replayed(cascade, seen)
        return cls(cascade, float(replay.correct.mean()), float(replay.spend.mean()))


def _most_right(priced: Iterable[_Priced]) -> _Priced:
    return max(priced, key=lambda own: (own.right, -own.spend))


def _between(priced: list[list[_Priced]], seen: Observations, budget: float) -> Cascade:
    """The best cascade for so much that can be had of those at ascending prices, and of what lies between two of them.

    `priced` has a list for each strategy to begin with. That of the cheapest one ends with one that keeps the budget.
    """
    rows = [row for row in priced if row[-1].spend <= budget]
    row = max(rows, key=lambda row: _most_right(own for own in row if own.spend <= budget).right)
    kept = _most_right(own for own in row if own.spend <= budget)
    over = [own for own in row if own.spend > budget]
    return _towards(over[-1].cascade, kept.cascade, seen, budget, _FEW_PLACES) if over else kept.cascade


def _begun_by(first: int, seen: Observations, bins: list[SupportBins], budget: float) -> Cascade:
    """The best cascade that begins with this strategy, which alone keeps the budget."""
    low, high = (price / max(float(seen.spend[:, 0].mean()), 1e-12) for price in _PRICES)
    best, over = Cascade(first), _at_price(seen, bins, low, first)
    if _spend(over, seen) <= budget:
        return _simpler(_best((over, best), seen), seen, low, budget)
    for _ in range(_HALVINGS):
        price = float(np.sqrt(low * high))
        found = _at_price(seen, bins, price, first)
        if _spend(found, seen) <= budget:
            high, best = price, _best((found, best), seen)
        else:
            low, over = price, found
    return _simpler(_towards(over, best, seen, budget), seen, low, budget)


def _at_price(seen: Observations, bins: list[SupportBins], price: float, first: int) -> Cascade:
    """The cascade that begins so with the greatest mean of right answers less `price` times spend."""
    best = Cascade(first)
    worth = _worth(best, seen, price)
    reached: Mapping[int, Bools] = {}
    for _ in range(_ROUNDS):
        found = Cascade(first, _turns(seen, bins, price, reached))
        if (own := _worth(found, seen, price)) > worth:
            best, worth = _reached(found, seen), own
        reached = replayed(found, seen).reached
    return best


def _turns(seen: Observations, bins: list[SupportBins], price: float, reached: Mapping[int, Bools]) -> dict[int, Turn]:
    """What should follow each strategy, found from the rows that come to it, where these are known."""
    rows, ways = seen.correct.shape
    candidates = _worthwhile(seen)
    # float64 [rows, strategies]: what a row is worth from a strategy on, without the strategy's own spend.
    worths, turns = seen.correct.copy(), {}
    for own in range(ways - 1, -1, -1):
        later = [way for way in candidates if way > own]
        choices = np.column_stack(
            [seen.correct[:, own], *(worths[:, way] - price * seen.further(own, way) for way in later)]
        )
        means = bins[own].averages(choices, reached.get(own, np.ones(rows, dtype=bool)))
        # The first of equals: it ends where going on gains nothing.
        chosen = means.argmax(axis=1)
        worths[:, own] = choices[np.arange(rows), chosen[bins[own].places]]
        if chosen.any():
            turns[own] = _turn(bins[own].cuts, [None if number == 0 else later[number - 1] for number in chosen])
    return turns


def _worthwhile(seen: Observations) -> list[int]:
    """The strategies that are right more often than every cheaper one: only these are gone on to.

    The others would only add chances to be wrong about what few rows tell.
    """
    right = seen.correct.mean(axis=0)
    return [way for way in range(len(right)) if way == 0 or right[way] > right[:way].max()]


def _towards(over: Cascade, kept: Cascade, seen: Observations, budget: float, places: int = _PLACES) -> Cascade:
    """A cascade that keeps the budget, with what is best of one that begins alike and does not.

    Turn by turn, what `over` does holds below a cut, which is tried at so many places, and what `kept` does from there
    on.
    """
    for own in sorted(over.turns):
        lower, upper = over.turns[own], kept.turns.get(own, Turn((), (None,)))
        ordered = np.sort(seen.support[:, own])
        values = np.unique(ordered[:: max(len(ordered) // places, 1)])[1:]
        joined = [lower, *(_joined(lower, upper, cut_below(float(value), ordered)) for value in values)]
        tried = [Cascade(kept.first, {**kept.turns, own: turn}) for turn in joined]
        kept = _best((kept, *(cascade for cascade in tried if _spend(cascade, seen) <= budget)), seen)
    return _reached(kept, seen)


def _joined(lower: Turn, upper: Turn, cut: float) -> Turn:
    """The one turn below the cut, the other from there on."""
    below = [bound for bound in lower.cuts if bound < cut]
    above = [bound for bound in upper.cuts if bound > cut]
    follows = [*lower.next[: len(below) + 1], *upper.next[len(upper.cuts) - len(above) :]]
    return _turn((*below, cut, *above), follows)


def _simpler(cascade: Cascade, seen: Observations, price: float, budget: float) -> Cascade:
    """The cascade without the cuts that together are worth less than one right answer, which chance may account for."""
    least = _worth(cascade, seen, price) - 1 / len(seen.problems)
    while True:
        most = min(budget, _MORE * _spend(cascade, seen))
        shorter = [other for other in _with_a_cut_less(cascade) if _spend(other, seen) <= most]
        if not shorter:
            break
        best = max(shorter, key=lambda other: _worth(other, seen, price))
        if _worth(best, seen, price) < least:
            break
        cascade = best
    return _reached(cascade, seen)


def _with_a_cut_less(cascade: Cascade) -> Iterator[Cascade]:
    """The cascades in which one part of a turn is joined to the one beside it."""
    for way, turn in cascade.turns.items():
        for part in range(len(turn.next)):
            for beside in (part - 1, part + 1):
                if 0 <= beside < len(turn.next):
                    follows = [*turn.next]
                    follows[part] = turn.next[beside]
                    yield Cascade(cascade.first, {**cascade.turns, way: _turn(turn.cuts, follows)})


def _reached(cascade: Cascade, seen: Observations) -> Cascade:
    """The cascade without the turns that no row comes to."""
    reached = replayed(cascade, seen).reached
    ends = Turn((), (None,))
    return Cascade(cascade.first, {way: turn for way, turn in cascade.turns.items() if way in reached and turn != ends})


def _turn(cuts: tuple[float, ...], follows: list[int | None]) -> Turn:
    """The turn without the cuts that tell nothing apart."""
    kept = [place for place in range(len(cuts)) if follows[place] != follows[place + 1]]
    return Turn(tuple(cuts[place] for place in kept), (*(follows[place] for place in kept), follows[-1]))


def _spend(cascade: Cascade, seen: Observations) -> float:
    return float(replayed(cascade, seen).spend.mean())


def _worth(cascade: Cascade, seen: Observations, price: float) -> float:
    replay = replayed(cascade, seen)
    return float((replay.correct - price * replay.spend).mean())


def _best(cascades: Iterable[Cascade], seen: Observations) -> Cascade:
    """The one that is right most often; of equals, the one that takes least."""
    return max(cascades, key=lambda cascade: (float(replayed(cascade, seen).correct.mean()), -_spend(cascade, seen)))


@dataclass(frozen=True, slots=True)
class ExpectedAccuracy:
    """The share of right answers with its 95% interval, and the mean spend."""

    right: float
    between: Interval
    spend: float


def held_out(seen: Observations, budget: float) -> ExpectedAccuracy:
    """Cross-validation in five folds: each problem is answered by the cascade that the other folds gave.

    All rows of a problem are in one fold. The interval is over problems: Wilson's, or a bootstrap's where problems were
    run several times. Raises ValueError for less than two problems.
    """
    names = seen.names
    if len(names) < 2:
        raise ValueError("what was learned from one problem cannot be tried on another")
    right, spent = defaultdict(list), defaultdict(list)
    for fold in range(min(_FOLDS, len(names))):
        own = {name for place, name in enumerate(names) if place % _FOLDS == fold}
        tried = seen.only(own)
        replay = replayed(_learned(seen.only(set(names) - own), budget), tried)
        for row, problem in enumerate(tried.problems):
            right[problem].append(float(replay.correct[row]))
            spent[problem].append(float(replay.spend[row]))
    rights = [fmean(right[name]) for name in names]
    # A bootstrap of problems that all agree would be certain.
    once = len(names) == len(seen.problems) or len(set(rights)) == 1
    between = wilson(round(sum(rights)), len(rights)) if once else bootstrap_interval(rights)
    return ExpectedAccuracy(fmean(rights), between, fmean(fmean(spent[name]) for name in names))


def _learned(seen: Observations, budget: float) -> Cascade:
    try:
        return learned(seen, budget)
    except OverBudget as over:
        # A part of the problems can take more than all of them together.
        return Cascade(over.way)
