"""Learning a cascade from observations: the most right answers at a mean spend.

A way's support says how hard its problem is, so how well a problem is served depends on where it goes from there. Right
answers are weighed against what they take at a *price*: the cascade is the one with the greatest mean of right answers
less price times spend, and the price the least at which the budget is kept (a Lagrangian). For a price, what should
follow a way is known once it is known for all later ways, so that turns are found from the last way to the first.

Budgets by difficulty are those of Snell et al., "Scaling LLM Test-Time Compute Optimally", 2024, section 3, where
difficulty is estimated once, by bins of a verifier's scores of many samples. Here the ways that a problem was tried by
are both the estimate and an answer, as in the cascades of Chen et al., "FrugalGPT", 2023.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from qpdsl.budgets.observations import Observations
from qpdsl.budgets.support_bins import SupportBins, cut_below
from qpdsl.budgets.way_cascade import Bools, Cascade, replayed
from qpdsl.planner.budget.budget_policy import Turn

# How often turns are found anew for the rows alone that come to them.
_ROUNDS = 3
# Prices are looked for between these, in right answers for the spend of the cheapest way, by so many halvings.
_PRICES = (1e-6, 10.0)
_HALVINGS = 24
# What a simpler cascade may take of what the other takes.
_MORE = 1.01
# How many places for a cut are tried where two prices differ.
_PLACES = 64


class OverBudget(ValueError):
    """No way keeps the budget. `way` is the number of the cheapest, `spend` what it takes on average."""

    def __init__(self, way: int, spend: float) -> None:
        super().__init__(f"the cheapest way takes {spend:,.4g} a problem")
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


def _begun_by(first: int, seen: Observations, bins: list[SupportBins], budget: float) -> Cascade:
    """The best cascade that begins with this way, which alone keeps the budget."""
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
    """What should follow each way, found from the rows that come to it, where these are known."""
    rows, ways = seen.correct.shape
    candidates = _worthwhile(seen)
    # float64 [rows, ways]: what a row is worth from a way on, without the way's own spend.
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
    """The ways that are right more often than every cheaper one: only these are gone on to.

    The others would only add chances to be wrong about what few rows tell.
    """
    right = seen.correct.mean(axis=0)
    return [way for way in range(len(right)) if way == 0 or right[way] > right[:way].max()]


def _towards(over: Cascade, kept: Cascade, seen: Observations, budget: float) -> Cascade:
    """A cascade that keeps the budget, with what is best of one that begins alike and does not.

    Turn by turn, what `over` does holds below a cut and what `kept` does from there on.
    """
    for own in sorted(over.turns):
        lower, upper = over.turns[own], kept.turns.get(own, Turn((), (None,)))
        ordered = np.sort(seen.support[:, own])
        values = np.unique(ordered[:: max(len(ordered) // _PLACES, 1)])[1:]
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
