"""Top-k, vote, extract and expressions over hand-made rows."""

from __future__ import annotations

import asyncio
import importlib.util
from typing import Any

import pytest

from qpdsl.executor.engine.engine import Engine
from qpdsl.executor.events.stream import EventStream
from qpdsl.executor.runtime.instance.candidates import Candidates, Generated, Row
from qpdsl.executor.runtime.instance.instance import Instance, RowError, Services
from qpdsl.executor.runtime.operators.columns import extract
from qpdsl.executor.runtime.operators.relational import assign, split, top_k, where
from qpdsl.executor.runtime.operators.vote import vote
from qpdsl.grammar import ast
from qpdsl.grammar.parse.parser import parse_file
from qpdsl.grammar.source import Source, Span
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.evaluate import evaluate, evaluate_rows

NOWHERE = Span(0, 0)


def instance() -> Instance:
    return Instance("", Services(Engine(), {}, {}, EventStream()), {"k": 2}, 0, b"")


def rows(*columns: dict[str, Any]) -> Candidates:
    return tuple(Row(None, (index,), {"text": "", **each}) for index, each in enumerate(columns))


def expr(text: str) -> ast.Expr:
    file = parse_file(Source("e.qp", f"program p() {{\n return {text}\n}}"))
    (stage,) = file.programs[0].body
    assert isinstance(stage, ast.Return)
    return stage.value


def paths(result: Candidates) -> list[int]:
    return [row.path[0] for row in result]


def test_top_k_puts_the_best_first_ties_go_to_the_earlier_row_and_none_is_last() -> None:
    given = rows({"s": 0.2}, {"s": None}, {"s": 0.9}, {"s": 0.9}, {"s": -1.0})
    op = ops.TopK(stage=0, span=NOWHERE, k=expr("k"), by=expr("s"))
    assert paths(asyncio.run(top_k(op, given, instance()))) == [2, 3]
    everything = ops.TopK(stage=0, span=NOWHERE, k=expr("10"), by=expr("s"))
    assert paths(asyncio.run(top_k(everything, given, instance()))) == [2, 3, 0, 4, 1]


def test_keep_per_column_keeps_the_best_of_each_value_in_the_order_first_seen() -> None:
    given = rows({"g": 1, "s": 1}, {"g": 0, "s": 5}, {"g": 1, "s": 2}, {"g": None, "s": 0}, {"g": 0, "s": 5}, {"g": 1})
    op = ops.TopK(stage=0, span=NOWHERE, k=expr("k"), by=expr("s"), per="g")
    assert paths(asyncio.run(top_k(op, given, instance()))) == [2, 0, 1, 4, 3]


def test_where_keeps_what_holds_and_none_does_not() -> None:
    given = rows({"s": 1}, {"s": 5}, {"s": None}, {"s": 3})
    op = ops.Where(stage=0, span=NOWHERE, condition=expr("s > k"))
    assert paths(asyncio.run(where(op, given, instance()))) == [1, 3]


def test_split_copies_rows_in_groups_of_all_rows() -> None:
    op = ops.Split(stage=0, span=NOWHERE, count=expr("3"))
    made = asyncio.run(split(op, rows({"s": 1}, {"s": 5}), instance()))
    assert [(row.path, row.columns["s"], row.columns["group"]) for row in made] == [
        *[((0, copy), 1, copy) for copy in range(3)],
        *[((1, copy), 5, 3 + copy) for copy in range(3)],
    ]


def test_assign_sets_one_value_over_all_rows() -> None:
    op = ops.Assign(stage=0, span=NOWHERE, column="top", value=expr("max(s) + k"))
    made = asyncio.run(assign(op, rows({"s": 1}, {"s": 5}), instance()))
    assert [row.columns["top"] for row in made] == [7, 7]
    assert asyncio.run(assign(op, (), instance())) == ()


@pytest.mark.parametrize(("equal", "winner"), [("text", 0), ("number", 1)])
def test_a_vote_counts_equal_numbers_together(equal: Any, winner: int) -> None:
    given = rows(*({"a": value} for value in ("x", "7", "7.0", "0.7e1", "x", "-7", " 7 ")))
    op = ops.Vote(stage=0, span=NOWHERE, column="a", weight=None, equal=equal)
    assert paths(asyncio.run(vote(op, given, instance()))) == [winner]


def voted(*answers: object) -> list[int]:
    op = ops.Vote(stage=0, span=NOWHERE, column="a", weight=None, equal="math")
    return paths(asyncio.run(vote(op, rows(*({"a": answer} for answer in answers)), instance())))


def test_a_vote_counts_equal_mathematics_together() -> None:
    pytest.importorskip("math_verify")
    assert voted("x", r"\frac{1}{2}", "x", "0.5", "y", "1/2", None) == [1]
    assert voted("1", "x + 1", "2", "1+x") == [1]
    assert voted("7", 7, "8", "8.0", "8") == [2]


def test_mathematics_that_nobody_waits_for_is_not_the_same() -> None:
    """In the test's own process this would stand still for ever."""
    pytest.importorskip("math_verify")
    assert voted("9^{9^9}", "1", "1.0") == [1]


def test_a_vote_on_mathematics_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert voted("1/2") == voted("3", "3.0") == [0]
    with pytest.raises(RowError, match="pip install math-verify"):
        voted("1/2", "x")


@pytest.mark.parametrize(
    ("given", "weight", "winner"),
    [
        ([{"a": "1"}, {"a": "2"}, {"a": "2"}], None, 1),
        ([{"a": "1"}, {"a": "2"}, {"a": None}, {"a": None}], None, 0),
        ([{"a": "1", "s": 0.3}, {"a": "2", "s": 0.2}, {"a": "1", "s": 0.35}, {"a": "3", "s": 0.6}], "s", 2),
        ([{"a": "1", "s": None}, {"a": "2", "s": 0.1}], "s", 1),
        ([{"a": "1", "s": 0.5}, {"a": "2", "s": 0.5}], "s", 0),
        ([{"a": "1", "s": 0.3}, {"a": "2", "s": 0.1}, {"a": "2", "s": 0.2}], "s", 0),
        ([{"a": "1", "s": float("nan")}, {"a": "2", "s": 0.1}], "s", 1),
    ],
    ids=["most", "none-never-votes", "weighted-best-row", "none-weighs-nothing", "tie-first-seen", "rounded", "nan"],
)
def test_vote(given: list[dict[str, Any]], weight: str | None, winner: int) -> None:
    op = ops.Vote(stage=0, span=NOWHERE, column="a", weight=expr(weight) if weight else None)
    assert paths(asyncio.run(vote(op, rows(*given), instance()))) == [winner]


def test_a_vote_of_nothing_but_none_leaves_no_row() -> None:
    op = ops.Vote(stage=0, span=NOWHERE, column="a", weight=None)
    assert asyncio.run(vote(op, rows({"a": None}), instance())) == ()


@pytest.mark.parametrize(
    ("pattern", "text", "value"),
    [
        (ast.Regex(r"is (-?\d+)", span=NOWHERE), "it is 4, it is 5", "4"),
        (ast.Regex(r"\d+", span=NOWHERE), "a 77 b", "77"),
        (ast.Regex(r"(x)|y", span=NOWHERE), "y", None),
        (ast.Regex(r"z", span=NOWHERE), "y", None),
        (ast.JsonPath(("a", "b", 1), span=NOWHERE), '{"a": {"b": [1, "two"]}}', "two"),
        (ast.JsonPath(("a",), span=NOWHERE), '{"a": {"b": [1]}}', '{"b": [1]}'),
        (ast.JsonPath(("a", 3), span=NOWHERE), '{"a": [1]}', None),
        (ast.JsonPath(("a",), span=NOWHERE), "no json", None),
        (ast.JsonPath(("a",), span=NOWHERE), "[" * 200_000, None),
        (ast.JsonPath(("a", 0), span=NOWHERE), '{"a": "hello"}', None),
        (ast.JsonPath(("a",), span=NOWHERE), '{"a": "x\\ud800"}', "x?"),
    ],
)
def test_extract(pattern: ast.Regex | ast.JsonPath, text: str, value: str | None) -> None:
    op = ops.Extract(stage=0, span=NOWHERE, column="x", pattern=pattern)
    given = Row(None, (), {}, Generated(text=text))
    (row,) = asyncio.run(extract(op, (given,), instance()))
    assert row.columns["x"] == value


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
