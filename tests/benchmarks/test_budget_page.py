"""The page about budgets: points over the fixed strategies with their intervals, and what verifiers read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.search.budget_page import Figures, Line, gain, page
from qpdsl.runs.statistics import paired_values

CHEAP = Line("greedy", 0.4, 40.0, read=0.0, verdicts="0110" * 25)
DEAR = Line("search", 0.8, 140.0, read=300.0, verdicts="1110" * 25)
OURS = Line("budget 90", 0.75, 90.0, budget=90.0, expected=0.8, read=100.0, verdicts="0111" * 25)


def figures(*lines: Line) -> Figures:
    cheap, dear, ours = (replace(line, right=line.verdicts.count("1") / 100) for line in lines if line.verdicts)
    return Figures(100, "a machine", [cheap, dear], [ours])


def test_points_are_compared_problem_by_problem() -> None:
    found = figures(CHEAP, DEAR, OURS)
    mix = found.front(90.0)
    assert mix is not None and mix.right == pytest.approx((0.5 + 0.75) / 2)
    compared = gain(OURS, mix, 100)
    shares = [0.5, 1.0, 1.0, 0.0] * 25
    paired = paired_values(shares, [0.0, 1.0, 1.0, 1.0] * 25)
    assert (compared.difference, compared.interval, compared.p_value) == (
        paired.difference,
        paired.interval,
        paired.p_value,
    )
    text = "\n".join(page(found))
    assert "compared problem by problem" in text and "What is missing" not in text


def test_a_record_without_verdicts_says_what_is_missing() -> None:
    found = figures(CHEAP, DEAR, OURS)
    bare = [replace(line, verdicts=None, read=None) for line in (*found.fixed, *found.budgeted)]
    found = Figures(100, "a machine", bare[:2], bare[2:])
    mix = found.front(90.0)
    assert mix is not None
    compared = gain(bare[2], mix, 100)
    assert compared.p_value is None and compared.interval.low < compared.difference < compared.interval.high
    text = "\n".join(page(found))
    assert "What is missing" in text and "This record has sampled tokens only" in text


def test_what_verifiers_read_moves_the_front() -> None:
    found = figures(CHEAP, DEAR, OURS)
    mix = found.front(190.0, read=True)
    assert mix is not None and mix.share == pytest.approx((190 - 40) / (440 - 40))
    # For the tokens drawn alone the dear strategy is within reach.
    assert (alone := found.front(190.0)) is not None and alone.second.name == "search" and alone.share == 0.0
    assert "drawn and read" in "\n".join(page(found))


def test_nothing_fixed_is_as_cheap() -> None:
    found = figures(CHEAP, DEAR, OURS)
    assert found.front(10.0) is None and "| 90 | 90 |" in "\n".join(page(replace(found, fixed=[DEAR])))
