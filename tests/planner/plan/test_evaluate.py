"""Expressions over a row, and aggregates over all rows."""

from __future__ import annotations

from typing import Any

import pytest

from qpdsl.planner.plan.evaluate import evaluate, evaluate_rows
from qpdsl.planner.plan.reads import most_ahead
from qpdsl.planner.values.value import NUMBER
from tests.support.executor.rows import expr


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 + 2 * 3 - 4 / 2", 5.0),
        ("-(7 % 4)", -3),
        ("1 / 0", None),
        ("s + 1", 1.5),
        ("missing + 1", None),
        ("missing < 1 or missing == none", True),
        ("not missing and s <= 0.5", True),
        ("min(s, 3) + max(1, 2)", 2.5),
        ("len(t)", 5),
        ("t matches /l+o$/", True),
        ('t + "!" == "hello!"', True),
    ],
)
def test_expressions_over_a_row(text: str, value: object) -> None:
    assert evaluate(expr(text), {"s": 0.5, "missing": None, "t": "hello"}) == value


def test_aggregates_see_all_rows_and_skip_none() -> None:
    relation: list[dict[str, Any]] = [{"s": 0.5, "f": True}, {"s": None, "f": True}, {"s": 1.5, "f": False}]
    assert evaluate_rows(expr("mean(s)"), relation, {}) == 1.0
    assert evaluate_rows(expr("max(s) - min(s)"), relation, {}) == 1.0
    assert evaluate_rows(expr("all(f)"), relation, {}) is False
    assert evaluate_rows(expr("any(s > 1)"), relation, {}) is True
    assert evaluate_rows(expr("s"), relation, {}) == 0.5


def test_no_text_keeps_a_regex_or_a_number_busy() -> None:
    # With backtracking the first takes longer than anybody waits, the second minutes.
    assert evaluate(expr("t matches /^(a+)+$/"), {"t": "a" * 5000 + "b"}) is False
    assert NUMBER.fullmatch("1" * 200_000 + "x") is None


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("max(1, min(width, count(s > 0.5)))", 4.0),
        ("min(count(s > 0.5), other)", 100.0),
        ("max(other, count(s > 0.5))", None),
        ("count(s > 0.5) + 1", 100.0),
        ("width * 2", 8.0),
    ],
)
def test_the_most_that_a_count_of_a_hundred_rows_comes_to(text: str, most: float | None) -> None:
    assert most_ahead(expr(text), 100.0, {"width": 4}) == most
