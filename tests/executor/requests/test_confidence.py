"""What a token's confidence is held to."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpdsl.executor.requests.drawing import Confidence, ConfidenceFloor, DrawFigures


def test_a_token_must_be_over_the_threshold() -> None:
    wanted = Confidence("margin", 0.5)
    assert [wanted.holds(value) for value in (0.4, 0.5, 0.6)] == [False, False, True]
    assert wanted.near(0.5 + 1e-9) and not wanted.near(0.5001)
    assert wanted.after(0.1) == wanted
    # Nothing is over 1, so with a threshold of 1 no token stands.
    assert not Confidence("probability", 1.0).holds(1.0)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_a_share_is_held_whatever_the_confidences_are(share: float) -> None:
    pick = random.Random(3)
    kinds = [lambda: pick.random(), lambda: 1 - pick.random() ** 8, lambda: 1.0, lambda: 0.0]
    for kind in kinds:
        wanted, total = Confidence(share=share), 0
        for drawn in range(1, 400):
            confidence = kind()
            total += not wanted.holds(confidence)
            wanted = wanted.after(confidence)
            assert abs(total / drawn - share) <= 1.1 / (0.1 * drawn)


def test_numbers_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="share"):
        Confidence(share=1.5)
    with pytest.raises(ValueError, match="threshold"):
        Confidence("entropy", float("nan"))


@given(st.lists(st.sampled_from([0.0, 1.5, 2.0, 7.25]), max_size=20), st.integers(1, 6), st.integers(0, 20))
def test_a_floor_goes_on_where_another_request_left_off(drawn: list[float], window: int, cut: int) -> None:
    floor = ConfidenceFloor(window, 2.0, 5)
    chosen = [value for value in drawn if value]
    wanted = [sum(chosen[at - window : at]) / window for at in range(window, len(chosen) + 1)]
    first, rest = drawn[:cut], drawn[cut:]
    follow = floor.follow()
    means = [follow.push(value) for value in first]
    onward = floor.after(DrawFigures(0.0, value, 0.0) for value in first)
    assert onward == floor.after(DrawFigures(0.0, value, 0.0) for value in first if value)
    follow = onward.follow()
    means += [follow.push(value) for value in rest]
    assert [mean for mean in means if mean is not None] == wanted
