import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpdsl.runs.answer_metrics import calibration

PAIRS = st.lists(st.tuples(st.integers(0, 20).map(lambda n: n / 20), st.booleans()), min_size=1, max_size=40)


@given(PAIRS)
def test_auroc_is_the_share_of_pairs_in_order(pairs: list[tuple[float, bool]]) -> None:
    rights, wrongs = ([score for score, right in pairs if right is wanted] for wanted in (True, False))
    found = calibration(*zip(*pairs, strict=True))
    assert found is not None and found.answers == len(pairs)
    if not rights or not wrongs:
        assert found.auroc is None
    else:
        wins = sum((a > b) + (a == b) / 2 for a in rights for b in wrongs)
        assert found.auroc == pytest.approx(wins / (len(rights) * len(wrongs)))


@given(PAIRS)
def test_the_expected_error_is_that_of_ten_bins(pairs: list[tuple[float, bool]]) -> None:
    total = 0.0
    for number in range(10):
        own = [(s, r) for s, r in pairs if number / 10 <= s < (number + 1) / 10 or (number == 9 and s == 1)]
        if own:
            total += abs(sum(r for _, r in own) / len(own) - sum(s for s, _ in own) / len(own)) * len(own)
    found = calibration(*zip(*pairs, strict=True))
    assert found is not None and found.expected_error == pytest.approx(total / len(pairs))
    assert found.brier == pytest.approx(sum((s - r) ** 2 for s, r in pairs) / len(pairs))


def test_a_score_that_is_no_probability_is_ordered_only() -> None:
    found = calibration([-3.0, 2.5], [False, True])
    assert found is not None and (found.expected_error, found.brier, found.auroc) == (None, None, 1.0)
    assert calibration([], []) is None
