"""What a token's confidence is held to."""

from __future__ import annotations

import random

import pytest

from qpdsl.executor.requests.confidence import Confidence


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
