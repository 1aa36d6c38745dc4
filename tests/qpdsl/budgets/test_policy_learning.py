"""Learning: the known best cascade, more right answers for more, and the budget kept on other problems."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from qpdsl.budgets.observations import Observations
from qpdsl.budgets.policy_learning import Cascade, OverBudget, learned, replayed
from tests.qpdsl.budgets.made_up import easy_and_hard, random_problems


def test_the_cheap_way_answers_what_it_is_sure_of_and_the_dear_way_the_rest() -> None:
    seen = easy_and_hard()
    found = learned(seen, 60.0)
    turn = found.turns[0]
    assert found.first == 0 and turn.after(0.9) is None and turn.after(0.1) == 1
    assert turn.cuts == pytest.approx((0.5,))
    replay = replayed(found, seen)
    assert replay.correct.mean() == 1.0 and replay.spend.mean() == pytest.approx(60.0)


def test_less_than_that_is_spent_on_as_many_as_it_is_enough_for() -> None:
    """Equal support is never told apart, so that below 60 nobody goes on."""
    assert learned(easy_and_hard(), 59.0) == Cascade(0)


def test_where_support_tells_nothing_a_budget_buys_a_way_for_all() -> None:
    seen = easy_and_hard(telling=False)
    assert learned(seen, 99.0) == Cascade(0)
    assert learned(seen, 100.0) == Cascade(1)


def test_what_was_drawn_already_is_not_paid_for_again() -> None:
    seen = replace(easy_and_hard(), nested=frozenset({(0, 1)}))
    found = learned(seen, 55.0)
    assert replayed(found, seen).spend.mean() == pytest.approx(55.0)
    assert replayed(found, seen).correct.mean() == 1.0


def test_a_budget_below_the_cheapest_way_is_refused() -> None:
    with pytest.raises(OverBudget) as raised:
        learned(easy_and_hard(), 9.0)
    assert raised.value.spend == 10.0


@pytest.mark.parametrize("seed", range(4))
def test_more_to_spend_never_has_fewer_right(seed: int) -> None:
    seen = random_problems(seed)
    rights = [replayed(learned(seen, budget), seen).correct.mean() for budget in (12, 40, 100, 250, 700, 2000, 4000)]
    assert rights == sorted(rights)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("budget", [300.0, 1200.0])
def test_it_is_better_than_the_line_between_fixed_ways_on_problems_not_learned_from(seed: int, budget: float) -> None:
    seen, other = random_problems(seed), random_problems(seed + 100, 2000)
    replay = replayed(learned(seen, budget), other)
    assert replay.spend.mean() <= 1.1 * budget
    line = np.interp(replay.spend.mean(), other.spend.mean(axis=0), other.correct.mean(axis=0))
    assert replay.correct.mean() > line


def test_the_same_observations_give_the_same_cascade_in_any_order() -> None:
    seen = random_problems(7)
    assert learned(seen, 200.0) == learned(_shuffled(seen), 200.0)


def _shuffled(seen: Observations) -> Observations:
    order = np.random.default_rng(1).permutation(len(seen.problems))
    return replace(
        seen,
        problems=tuple(seen.problems[row] for row in order),
        correct=seen.correct[order],
        spend=seen.spend[order],
        support=seen.support[order],
    )
