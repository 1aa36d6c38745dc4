"""What fewer samples would have come to: the same as counting every set of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpdsl.runs.estimators import best_at, consensus_at, pass_all, pass_at, weighted_at

SAMPLES = st.lists(st.sampled_from([None, "a", "b", "c"]), min_size=1, max_size=6)
SCORES = (0.9, 0.5, 0.5, 0.2, 0.7, 0.1)


@given(st.integers(1, 9), st.data())
def test_one_or_all_of_k_are_right_in_a_share_of_the_sets(n: int, data: st.DataObject) -> None:
    correct, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    sets = list(combinations([True] * correct + [False] * (n - correct), k))
    assert pass_at(n, correct, k) == pytest.approx(sum(map(any, sets)) / len(sets))
    assert pass_all(n, correct, k) == pytest.approx(sum(map(all, sets)) / len(sets))


def test_published_forms_of_both() -> None:
    assert pass_at(8, 3, 4) == pytest.approx(0.928571, abs=1e-6)
    assert pass_all(8, 3, 2) == pytest.approx(0.107143, abs=1e-6)


def test_pass_at_k_of_many_samples_stays_a_probability() -> None:
    assert pass_at(1000, 10, 100) == pytest.approx(1 - math.comb(990, 100) / math.comb(1000, 100))
    for n, correct, k in ((4, 5, 1), (4, 2, 5), (4, 2, 0)):
        for estimate in (pass_at, pass_all):
            with pytest.raises(ValueError, match="samples of which"):
                estimate(n, correct, k)


def consensus(answers: Sequence[Hashable], k: int) -> float:
    return consensus_at(answers, [answer == "a" for answer in answers], k)


@given(SAMPLES, st.data())
def test_the_consensus_is_that_of_every_order_of_k_samples(answers: list[str | None], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, min(len(answers), 4)))
    assert consensus(answers, k) == pytest.approx(_over_orders(answers, k, _first_of_the_most), abs=1e-9)


def test_the_consensus_in_numbers() -> None:
    answers = ["a"] * 3 + ["b"] * 3 + ["c", "d", None, None]
    found = [consensus(answers, k) for k in range(1, 6)]
    assert found == pytest.approx([0.3, 0.366666667, 0.391666667, 0.425, 0.462301587], abs=1e-9)
    many = ["a"] * 50 + ["x"] * 45 + ["y"] * 20 + [None] * 13
    assert [consensus(many, k) for k in (8, 64)] == pytest.approx([0.514912401, 0.694451582], abs=1e-9)
    assert consensus(["a", "b"] * 1000, 500) == pytest.approx(0.5)


def test_several_right_answers_count_together_and_one_that_is_right_half_the_time_half() -> None:
    assert consensus_at(["a", "b", "c"], [True, True, False], 2) == pytest.approx(2 / 3)
    assert consensus_at(["a", "a", None], [True, False, False], 3) == 0.5


def test_the_best_shares_equal_scores() -> None:
    right = [False, True, False, True, True, False]
    assert [best_at(SCORES, right, k) for k in (1, 2, 3, 6)] == pytest.approx([0.5, 0.5, 0.4, 0.0])
    assert best_at([None, -2.0], [True, False], 2) == 0.0


def test_weights_are_summed_over_every_set_in_the_order_of_rows() -> None:
    answers = list("bacaab")
    right = [answer == "a" for answer in answers]
    found = [weighted_at(answers, SCORES, right, k) for k in range(1, 7)]
    assert found == pytest.approx([0.5, 0.533333333, 0.5, 0.533333333, 0.666666667, 1.0], abs=1e-9)
    assert weighted_at([None, "a"], [1.0, None], [False, True], 2) == 0.0


def test_of_many_sets_the_same_ones_are_drawn_each_time() -> None:
    answers, weights = ["a", "b", "b"] * 12, [0.5, 0.3, 0.1] * 12
    right = [answer == "a" for answer in answers]
    found = weighted_at(answers, weights, right, 9)
    assert found == weighted_at(answers, weights, right, 9) and 0.6 < found < 0.9


def _first_of_the_most(answers: Sequence[Hashable]) -> bool:
    votes = [answer for answer in answers if answer is not None]
    return bool(votes) and max(votes, key=votes.count) == "a"


def _over_orders(answers: Sequence[Hashable], k: int, chosen: Callable[[Sequence[Hashable]], bool]) -> float:
    orders = [chosen(order) for order in permutations(answers, k)]
    return sum(orders) / len(orders)
