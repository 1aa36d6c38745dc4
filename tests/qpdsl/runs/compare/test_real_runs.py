"""Comparisons of runs of self_consistency over counting-500, as `qpdsl run` kept them: what was right is in a file."""

import json
from pathlib import Path

import numpy as np
import pytest

from qpdsl.runs.compare.comparison import compare
from qpdsl.runs.compare.comparison_text import verdict
from tests.support.compared_runs import seeds, side

RUNS = json.loads(Path(__file__).with_name("counting_500.json").read_text("utf-8"))["right"]
REGRESSION = 15


def right(name: str) -> list[bool]:
    return [digit == "1" for digit in RUNS[name]]


def test_another_plan_changes_nothing() -> None:
    said = verdict(compare(side(right("n=4, seed 0")), side(right("n=4, seed 0, naive"))))
    assert said.kind == "equal"


@pytest.mark.parametrize("width", [4, 8])
def test_another_seed_is_no_difference(width: int) -> None:
    found = compare(side(right(f"n={width}, seed 0")), side(right(f"n={width}, seed 1")))
    assert verdict(found).kind == "unclear"


def test_a_regression_of_three_points_is_found_wherever_it_is_planted() -> None:
    """In the same run: with common random numbers nothing else flips."""
    before = right("n=8, seed 0")
    for planting in range(20):
        after = before.copy()
        for number in np.random.default_rng(planting).choice(np.flatnonzero(before), REGRESSION, replace=False):
            after[number] = False
        assert verdict(compare(side(before), side(after))).kind == "worse"


def test_two_seeds_of_either_say_more_than_one() -> None:
    def width_of(number: int) -> float:
        names = ([f"n={width}, seed {seed}" for seed in range(number)] for width in (4, 8))
        figure = compare(*(seeds([right(name) for name in own]) for own in names)).accuracy
        assert figure is not None
        return figure.paired.interval.high - figure.paired.interval.low

    assert width_of(2) < 0.85 * width_of(1)
