"""`where`, `keep`, assignment and the value returned, over hand-made rows."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from qpdsl.executor.runtime.instance.candidates import Generated, Row
from qpdsl.executor.runtime.instance.instance import RowError
from qpdsl.executor.runtime.operators.relational import return_value, top_k, where
from qpdsl.grammar import ast
from qpdsl.planner.plan import ops
from tests.support.executor.rows import NOWHERE, expr, instance, paths, rows

RETURN = ops.Return(stage=0, span=NOWHERE, value=ast.Name("text", span=NOWHERE), parse=True)


def test_top_k_puts_the_best_first_ties_go_to_the_earlier_row_and_none_is_last() -> None:
    candidates = rows({"s": 0.2}, {"s": None}, {"s": 0.9}, {"s": 0.9}, {"s": -1.0})
    op = ops.TopK(stage=0, span=NOWHERE, k=expr("k"), by=expr("s"))
    assert paths(asyncio.run(top_k(op, candidates, instance()))) == [2, 3]
    everything = ops.TopK(stage=0, span=NOWHERE, k=expr("10"), by=expr("s"))
    assert paths(asyncio.run(top_k(everything, candidates, instance()))) == [2, 3, 0, 4, 1]


def test_keep_per_column_keeps_the_best_of_each_value_in_the_order_first_seen() -> None:
    candidates = rows(
        {"g": 1, "s": 1}, {"g": 0, "s": 5}, {"g": 1, "s": 2}, {"g": None, "s": 0}, {"g": 0, "s": 5}, {"g": 1}
    )
    op = ops.TopK(stage=0, span=NOWHERE, k=expr("k"), by=expr("s"), per="g")
    assert paths(asyncio.run(top_k(op, candidates, instance()))) == [2, 0, 1, 4, 3]


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
