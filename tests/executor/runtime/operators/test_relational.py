"""`where`, `keep`, assignment and the value returned, over hand-made rows."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from qpdsl.executor.runtime.instance.candidates import Generated, Row
from qpdsl.executor.runtime.instance.instance import RowError
from qpdsl.executor.runtime.operators.relational import distinct, first, let, order, return_value, top_k, where
from qpdsl.grammar import ast
from qpdsl.planner.plan import ops
from tests.support.executor.rows import NOWHERE, expr, instance, name, paths, rows

RETURN = ops.Return(stage=0, span=NOWHERE, value=ast.Name("text", span=NOWHERE), parse=True)


def test_the_first_rows_stay_as_they_stand() -> None:
    ranked = rows({"g": 1}, {"g": 0}, {"g": 1}, {"g": 1})
    of_each = ops.First(stage=0, span=NOWHERE, count=expr("k"), per=name("g"))
    assert paths(asyncio.run(first(of_each, ranked, instance()))) == [0, 1, 2]
    assert paths(asyncio.run(first(ops.First(stage=0, span=NOWHERE), ranked, instance()))) == [0]
    assert paths(asyncio.run(first(ops.First(expr("9"), stage=0, span=NOWHERE), ranked, instance()))) == [0, 1, 2, 3]


def test_top_k_puts_the_best_first_ties_go_to_the_earlier_row_and_none_is_last() -> None:
    candidates = rows({"s": 0.2}, {"s": None}, {"s": 0.9}, {"s": 0.9}, {"s": -1.0})
    op = ops.Keep(stage=0, span=NOWHERE, count=expr("k"), by=expr("s"))
    assert paths(asyncio.run(top_k(op, candidates, instance()))) == [2, 3]
    everything = ops.Keep(stage=0, span=NOWHERE, count=expr("10"), by=expr("s"))
    assert paths(asyncio.run(top_k(everything, candidates, instance()))) == [2, 3, 0, 4, 1]


def test_a_count_may_look_at_all_rows_and_nothing_is_asked_of_no_rows() -> None:
    candidates = rows({"s": 4}, {"s": 1}, {"s": 3}, {"s": 2})
    half, first_of = expr("int(count() * 0.5)"), expr("min(s)")
    keep = ops.Keep(stage=0, span=NOWHERE, count=half, by=expr("s"))
    assert paths(asyncio.run(top_k(keep, candidates, instance()))) == [0, 2]
    assert paths(asyncio.run(first(ops.First(first_of, stage=0, span=NOWHERE), candidates, instance()))) == [0]
    assert asyncio.run(top_k(keep, (), instance())) == ()
    assert asyncio.run(top_k(keep, candidates[:1], instance())) == ()


def test_keep_per_column_keeps_the_best_of_each_value_in_the_order_first_seen() -> None:
    candidates = rows(
        {"g": 1, "s": 1}, {"g": 0, "s": 5}, {"g": 1, "s": 2}, {"g": None, "s": 0}, {"g": 0, "s": 5}, {"g": 1}
    )
    op = ops.Keep(stage=0, span=NOWHERE, count=expr("k"), by=expr("s"), per=name("g"))
    assert paths(asyncio.run(top_k(op, candidates, instance()))) == [2, 0, 1, 4, 3]


def test_distinct_keeps_the_first_row_of_each_value_and_none_is_one() -> None:
    candidates = rows({"s": 1}, {"s": None}, {"s": 2}, {"s": 1}, {"s": None}, {"s": ("a",)}, {"s": ("a",)})
    op = ops.Distinct(stage=0, span=NOWHERE, by=expr("s"))
    assert paths(asyncio.run(distinct(op, candidates, instance()))) == [0, 1, 2, 5]
    grouped = rows({"g": 1, "s": 1}, {"g": 0, "s": 1}, {"g": 1, "s": 1}, {"g": 1, "s": 2}, {"g": 0, "s": 1})
    per = ops.Distinct(stage=0, span=NOWHERE, by=expr("s"), per=name("g"))
    assert paths(asyncio.run(distinct(per, grouped, instance()))) == [0, 1, 3]


def test_order_puts_the_greatest_number_first_texts_by_the_alphabet_and_none_last() -> None:
    op = ops.Order(stage=0, span=NOWHERE, by=expr("s"))
    numbers = rows({"s": 2}, {"s": None}, {"s": 3.5}, {"s": 2.0}, {"s": -1}, {"s": float("nan")})
    assert paths(asyncio.run(order(op, numbers, instance()))) == [2, 0, 3, 4, 1, 5]
    words = rows({"s": "b"}, {"s": None}, {"s": "a"}, {"s": "b"})
    assert paths(asyncio.run(order(op, words, instance()))) == [2, 0, 3, 1]
    by = ops.Order(stage=0, span=NOWHERE, by=expr("-s"))
    assert paths(asyncio.run(order(by, numbers, instance()))) == [4, 0, 3, 2, 1, 5]


def test_let_and_where_look_at_all_rows_of_the_stage() -> None:
    candidates = rows({"a": "x", "s": 1}, {"a": "y", "s": 4}, {"a": "x", "s": 3}, {"a": None, "s": None})
    share = ops.Let(stage=0, span=NOWHERE, column=name("share"), value=expr("count(a per a) / count(a)"))
    shared = asyncio.run(let(share, candidates, instance()))
    assert [row.columns["share"] for row in shared] == [2 / 3, 1 / 3, 2 / 3, 0.0]
    over_mean = ops.Where(stage=0, span=NOWHERE, condition=expr("s >= mean(s per a) and s > min(s)"))
    assert paths(asyncio.run(where(over_mean, candidates, instance()))) == [1, 2]
    centred = ops.Keep(stage=0, span=NOWHERE, count=expr("1"), by=expr("s - mean(s per a)"))
    assert paths(asyncio.run(top_k(centred, candidates, instance()))) == [2]


def test_let_puts_lists_and_records_into_columns() -> None:
    value = expr("[k, 1] + [len(text)]")
    (row,) = asyncio.run(let(ops.Let(stage=0, span=NOWHERE, column=name("l"), value=value), rows({}), instance()))
    assert row.columns["l"] == (2, 1, 0)
    returned = ops.Return(stage=0, span=NOWHERE, value=expr('{first: l[0], no: l[9], shown: "{l}"}'))
    assert return_value(returned, (row,), instance()) == {"first": 2, "no": None, "shown": "[2, 1, 0]"}


def test_where_keeps_what_holds_and_none_does_not() -> None:
    candidates = rows({"s": 1}, {"s": 5}, {"s": None}, {"s": 3})
    op = ops.Where(stage=0, span=NOWHERE, condition=expr("s > k"))
    assert paths(asyncio.run(where(op, candidates, instance()))) == [1, 3]


def returned(text: str | None, *, incomplete: bool = False) -> Any:
    row = Row(None, (), {"text": text}, Generated(incomplete=incomplete))
    return return_value(RETURN, (row,), instance())


@pytest.mark.parametrize(
    ("text", "record"),
    [
        ('{"a": [1, 2.5, null], "b": {"c": "é"}}', {"a": [1, 2.5, None], "b": {"c": "é"}}),
        ('{"a": "x\\ud800", "\\ude00": 1}', {"a": "x?", "?": 1}),
        ('{"a": "\\ud83d\\ude00"}', {"a": "😀"}),
    ],
)
def test_a_record_is_read_as_json_that_can_be_written_again(text: str, record: object) -> None:
    assert returned(text) == record


@pytest.mark.parametrize(
    ("text", "incomplete", "reason"),
    [
        ("{", False, "what is to be returned is no JSON: "),
        ('{"a": 1e999}', False, "what is to be returned is no JSON: the number 1e999 is too large"),
        ("1" * 5000, False, "what is to be returned is no JSON: "),
        ("[" * 200_000, False, "what is to be returned is no JSON: "),
        ("12", True, "the output was cut off before the record in it was whole"),
        (None, False, "no row has a value to return"),
    ],
)
def test_a_row_without_a_record_fails(text: str | None, incomplete: bool, reason: str) -> None:
    with pytest.raises(RowError) as error:
        returned(text, incomplete=incomplete)
    assert str(error.value).startswith(reason)
