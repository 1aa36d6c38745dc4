import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpdsl.runs.statistics import paired_test, paired_values

BOOLS = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60)


@given(BOOLS)
def test_mcnemar_is_the_sum_over_coins(pairs: list[tuple[bool, bool]]) -> None:
    result = paired_test(*zip(*pairs, strict=True))
    gained, lost = pairs.count((False, True)), pairs.count((True, False))
    throws = gained + lost
    uneven = [heads for heads in range(throws + 1) if abs(2 * heads - throws) >= abs(gained - lost)]
    expected = sum(math.comb(throws, heads) for heads in uneven) / 2**throws
    assert (result.gained, result.lost, result.pairs) == (gained, lost, len(pairs))
    assert result.p_value == pytest.approx(expected)
    assert result.difference == pytest.approx((gained - lost) / len(pairs))


@given(BOOLS)
def test_the_other_way_round_it_is_the_same(pairs: list[tuple[bool, bool]]) -> None:
    first, second = zip(*pairs, strict=True)
    one, other = paired_test(first, second), paired_test(second, first)
    assert one.p_value == other.p_value and one.difference == -other.difference
    assert one.interval.low == pytest.approx(-other.interval.high)


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=9))
def test_few_differences_are_permuted_exactly(differences: list[int]) -> None:
    result = paired_values([0.0] * len(differences), [float(value) for value in differences])
    seen = abs(sum(differences))
    sums = [
        abs(sum(map(math.prod, zip(signs, differences, strict=True))))
        for signs in product((1, -1), repeat=len(differences))
    ]
    assert result.p_value == pytest.approx(sum(total >= seen for total in sums) / len(sums))


def test_without_a_difference_five_in_a_hundred_are_called_significant_at_most() -> None:
    random = np.random.default_rng(3)
    booleans, values = [], []
    for _ in range(400):
        first, second = random.random((2, 200)) < 0.3
        booleans.append(paired_test(first.tolist(), second.tolist()).is_significant())
        one, other = random.exponential(100, (2, 60))
        values.append(paired_values(one.tolist(), other.tolist()).is_significant())
    assert np.mean(booleans) <= 0.05 and np.mean(values) <= 0.08


def test_the_interval_holds_its_confidence() -> None:
    random = np.random.default_rng(4)
    held = []
    for _ in range(1000):
        first = random.random(150) < 0.6
        second = np.where(random.random(150) < 0.2, random.random(150) < 0.9, first)
        true = 0.2 * (0.9 - 0.6)
        held.append(true in paired_test(first.tolist(), second.tolist()).interval)
    assert 0.93 <= np.mean(held) <= 0.98


@pytest.mark.parametrize("compare", [paired_test, paired_values])
def test_pairs_are_needed(compare) -> None:  # type: ignore[no-untyped-def]
    for first, second in (([], []), ([True], [True, False])):
        with pytest.raises(ValueError, match="make no pairs"):
            compare(first, second)
