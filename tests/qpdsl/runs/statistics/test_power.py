import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpdsl.runs.statistics import detectable_difference, holm, paired_test, paired_values


@pytest.mark.parametrize(("rows", "chance"), [(500, 0), (500, 30), (500, 120), (200, 40)])
def test_what_it_calls_detectable_is_found_four_times_in_five(rows: int, chance: int) -> None:
    random = np.random.default_rng(rows + chance)
    differences = np.zeros(rows)
    differences[:chance] = np.resize([1.0, -1.0], chance)
    effect = detectable_difference(differences.tolist())
    found = []
    for _ in range(300):
        kinds = random.multinomial(rows, [chance / rows / 2 + effect, chance / rows / 2, 1 - chance / rows - effect])
        gained, lost, _ = (int(kind) for kind in kinds)
        pairs = [(False, True)] * gained + [(True, False)] * lost + [(True, True)] * (rows - gained - lost)
        found.append(paired_test(*zip(*pairs, strict=True)).is_significant())
    assert 0.7 <= np.mean(found) <= 0.9


def test_more_problems_show_less_and_more_chance_hides_more() -> None:
    few, many, noisy = [0.0] * 100, [0.0] * 1000, [1.0, -1.0] * 20 + [0.0] * 60
    assert detectable_difference(many) < detectable_difference(few) < detectable_difference(noisy) <= 1
    assert detectable_difference([0.0]) == 1.0
    with pytest.raises(ValueError, match="difference of nothing"):
        detectable_difference([])


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 400))
def test_no_interval_of_a_significant_difference_holds_zero(gained: int, lost: int, equal: int) -> None:
    pairs = [(False, True)] * gained + [(True, False)] * lost + [(True, True)] * (equal + 1)
    result = paired_test(*zip(*pairs, strict=True))
    assert not (result.is_significant() and 0.0 in result.interval)


def test_many_values_are_compared_as_few_are() -> None:
    random = np.random.default_rng(5)
    first = random.exponential(100, 10_000)
    second = first + random.normal(0.15, 10, 10_000)
    resampled = paired_values(first.tolist(), second.tolist())
    normal = paired_values([*first.tolist(), 0.0], [*second.tolist(), 0.1])
    assert normal.p_value == pytest.approx(resampled.p_value, abs=0.02)
    assert normal.interval.low == pytest.approx(resampled.interval.low, abs=0.01)


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_raises_and_keeps_the_order(p_values: list[float]) -> None:
    raised = holm(p_values)
    assert all(own <= higher <= 1 for own, higher in zip(p_values, raised, strict=True))
    assert sorted(raised) == [raised[number] for number in sorted(range(len(raised)), key=p_values.__getitem__)]


def test_holm_by_hand() -> None:
    # 0.005 * 4, 0.01 * 3, 0.03 * 2, and 0.04 * 1, which is raised to the one before.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
