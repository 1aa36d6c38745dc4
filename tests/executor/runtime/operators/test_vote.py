"""`vote`: which answer wins, by which row, and when two answers are the same."""

from __future__ import annotations

import asyncio
import importlib.util
import math
from typing import Any

import pytest

from qpdsl.executor.runtime.instance.instance import RowError
from qpdsl.executor.runtime.operators.vote import decided_after, stays_ahead, vote
from qpdsl.planner.plan import ops
from tests.support.executor.rows import NOWHERE, expr, instance, name, paths, rows


@pytest.mark.parametrize(("equal", "winner"), [("text", 0), ("number", 1)])
def test_a_vote_counts_equal_numbers_together(equal: Any, winner: int) -> None:
    candidates = rows(*({"a": value} for value in ("x", "7", "7.0", "0.7e1", "x", "-7", " 7 ")))
    op = ops.Vote(stage=0, span=NOWHERE, column=name("a"), weight=None, equal=equal)
    assert paths(asyncio.run(vote(op, candidates, instance()))) == [winner]


def voted(*answers: object) -> list[int]:
    op = ops.Vote(stage=0, span=NOWHERE, column=name("a"), weight=None, equal="math")
    return paths(asyncio.run(vote(op, rows(*({"a": answer} for answer in answers)), instance())))


def test_a_vote_counts_equal_mathematics_together() -> None:
    pytest.importorskip("math_verify")
    assert voted("x", r"\frac{1}{2}", "x", "0.5", "y", "1/2", None) == [1]
    assert voted("1", "x + 1", "2", "1+x") == [1]
    assert voted("7", 7, "8", "8.0", "8") == [2]


def test_mathematics_that_nobody_waits_for_is_not_the_same() -> None:
    """In the test's own process this would stand still forever."""
    pytest.importorskip("math_verify")
    assert voted("9^{9^9}", "1", "1.0") == [1]


def test_a_vote_on_mathematics_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert voted("1/2") == voted("3", "3.0") == [0]
    with pytest.raises(RowError, match="pip install math-verify"):
        voted("1/2", "x")


@pytest.mark.parametrize(
    ("columns", "weight", "winner"),
    [
        ([{"a": "1"}, {"a": "2"}, {"a": "2"}], None, 1),
        ([{"a": "1"}, {"a": "2"}, {"a": None}, {"a": None}], None, 0),
        ([{"a": "1", "s": 0.3}, {"a": "2", "s": 0.2}, {"a": "1", "s": 0.35}, {"a": "3", "s": 0.6}], "s", 2),
        ([{"a": "1", "s": None}, {"a": "2", "s": 0.0}], "s", 1),
        ([{"a": "1", "s": 0.5}, {"a": "2", "s": 0.5}], "s", 0),
        ([{"a": "1", "s": 0.3}, {"a": "2", "s": 0.1}, {"a": "2", "s": 0.2}], "s", 0),
    ],
    ids=["most", "none-never-votes", "weighted-best-row", "without-weight-no-vote", "tie-first-seen", "rounded"],
)
def test_vote(columns: list[dict[str, Any]], weight: str | None, winner: int) -> None:
    op = ops.Vote(stage=0, span=NOWHERE, column=name("a"), weight=expr(weight) if weight else None)
    assert paths(asyncio.run(vote(op, rows(*columns), instance()))) == [winner]


def test_a_vote_of_nothing_but_none_leaves_no_row() -> None:
    op = ops.Vote(stage=0, span=NOWHERE, column=name("a"), weight=None)
    assert asyncio.run(vote(op, rows({"a": None}), instance())) == ()
    op = ops.Vote(stage=0, span=NOWHERE, column=name("a"), weight=expr("s"))
    assert asyncio.run(vote(op, rows({"a": "1", "s": None}), instance())) == ()


@pytest.mark.parametrize(("weight", "shown"), [(-0.5, "-0.5"), (float("nan"), "nan"), (float("inf"), "inf")])
def test_a_weight_is_no_less_than_0(weight: float, shown: str) -> None:
    op = ops.Vote(stage=0, span=NOWHERE, column=name("a"), weight=expr("s"))
    candidates = rows({"a": "1", "s": 0.5}, {"a": "2", "s": weight}, {"a": None, "s": -1.0})
    with pytest.raises(RowError, match=f"it is {shown} by `s` for the answer `2`"):
        asyncio.run(vote(op, candidates, instance()))


@pytest.mark.parametrize(
    ("answers", "sure", "counted"),
    [
        ("aaaa", 0.95, 4),
        ("aaaaa", 0.96, 4),
        ("aaa", 0.95, None),
        ("abaaaaaa", 0.95, 7),
        ("aaaa", 0.74, 1),
        ("ababab", 0.9, None),
        ("bbaaaaaaaaaa", 0.9, 8),
        ("a" * 60, 0.999999, 19),
    ],
)
def test_after_how_many_answers_a_vote_is_sure(answers: str, sure: float, counted: int | None) -> None:
    assert decided_after(list(answers), sure) == counted
    # Whoever has no answer is not counted, but was looked at.
    spread = [answer for letter in answers for answer in (None, letter)]
    assert decided_after(spread, sure) == (None if counted is None else 2 * counted)


def test_how_sure_it_is_that_a_leader_stays_ahead() -> None:
    for leader in range(12):
        for second in range(leader + 1):
            throws = leader + second + 1
            exact = sum(math.comb(throws, heads) for heads in range(leader + 1)) / 2**throws
            assert stays_ahead(leader, second) == pytest.approx(exact, abs=1e-12)
    assert stays_ahead(30_000, 29_000) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("equal", ["text", "number"])
def test_a_vote_that_is_sure_looks_at_no_more_rows(equal: Any) -> None:
    candidates = rows(*({"a": value} for value in "1212111" + "2" * 9))
    for sure, winner in ((0.8, 0), (0.95, 1)):
        decided = expr(str(sure))
        op = ops.Vote(stage=0, span=NOWHERE, column=name("a"), weight=None, equal=equal, decided=decided)
        assert paths(asyncio.run(vote(op, candidates, instance()))) == [winner]


def test_a_vote_per_column_has_a_winner_of_each_value_that_has_an_answer() -> None:
    answers = [(1, "x"), (0, "y"), (1, "y"), (1, "y"), (2, None), (0, "x"), (0, "x"), (0, "y")]
    candidates = rows(*({"g": group, "a": answer} for group, answer in answers))
    op = ops.Vote(stage=0, span=NOWHERE, column=name("a"), weight=None, per=name("g"))
    assert paths(asyncio.run(vote(op, candidates, instance()))) == [2, 1]
    sure = ops.Vote(stage=0, span=NOWHERE, column=name("a"), weight=None, decided=expr("0.7"), per=name("g"))
    assert paths(asyncio.run(vote(sure, candidates, instance()))) == [0, 1]
