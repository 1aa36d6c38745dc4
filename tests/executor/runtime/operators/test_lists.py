"""`join`, and the copies of `each`, over hand-made rows."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from qpdsl.executor.runtime.instance.candidates import Generated, Row
from qpdsl.executor.runtime.operators.lists import each_element, join
from qpdsl.grammar import ast
from qpdsl.grammar.source import Span
from qpdsl.planner.plan import ops
from tests.support.executor.rows import NOWHERE, expr, instance, name, paths, rows


def joined(value: str, *columns: dict[str, Any], sep: str = '" "', per: str = "") -> list[object]:
    group = name(per) if per else None
    op = ops.Join(stage=0, span=NOWHERE, column=name("all"), value=expr(value), sep=expr(sep), per=group)
    return [row.columns["all"] for row in asyncio.run(join(op, rows(*columns), instance()))]


def test_a_join_numbers_rows_from_one_and_leaves_out_what_is_none() -> None:
    assert joined('"{i}. {a}"', {"a": "x"}, {"a": None}, {"a": "z"}) == ["1. x 2. none 3. z"]
    assert joined("a", {"a": "x"}, {"a": None}, {"a": "z"}) == ["x z"]
    assert joined("a", {"a": None}) == [""] and joined("a") == []
    assert joined("i * k", {}, {}, sep='"\\n--\\n"') == ["2\n--\n4"]


def test_a_join_per_column_makes_one_row_of_each_value_and_its_aggregates_see_all_rows() -> None:
    columns = [{"g": 1, "a": "x"}, {"g": 0, "a": "y"}, {"g": 1, "a": "z"}]
    assert joined('"{i}{a}"', *columns, per="g") == ["1x 2z", "1y"]
    assert joined("count() + i", *columns, per="g") == ["4 5", "4"]
    op = ops.Join(stage=0, span=NOWHERE, column=name("all"), value=expr("a"), sep=expr('""'), per=name("g"))
    made = asyncio.run(join(op, rows(*columns), instance()))
    assert paths(made) == [0, 1] and made[0].columns == {**rows(*columns)[0].columns, "all": "xz"}


def elements(source: str | ast.JsonPath, *candidates: Row, type_: str = "unknown") -> list[tuple[Any, ...]]:
    parsed = expr(source) if isinstance(source, str) else source
    op = ops.Each(stage=0, span=NOWHERE, column=name("e"), source=parsed, body=None, type=type_)  # type: ignore[arg-type]
    return [(*row.path, row.columns["e"]) for row in each_element(op, candidates, instance())]


def test_each_copies_a_row_for_every_element_and_a_row_without_elements_is_gone() -> None:
    candidates = rows({"s": ("x", "y")}, {"s": ()}, {"s": None}, {"s": ("z",)})
    assert elements("s", *candidates) == [(0, 0, "x"), (0, 1, "y"), (3, 0, "z")]
    assert elements("[k, 3]", *candidates[:1]) == [(0, 0, 2), (0, 1, 3)]


@pytest.mark.parametrize(
    ("text", "type_", "found"),
    [
        ('{"a": {"b": ["x", {"n": 1}, [2]]}}', "unknown", ["x", {"n": 1}, (2,)]),
        ('{"a": {"b": [1, 2.0, "x"]}}', "int", [1, 2, None]),
        ('{"a": {"b": {}}}', "unknown", []),
        ('{"a": {"b": [1', "unknown", []),
    ],
)
def test_each_reads_a_list_in_the_json_of_the_text(text: str, type_: str, found: list[object]) -> None:
    path = ast.JsonPath(("a", "b"), span=Span(0, 0))
    row = Row(None, (), {"text": text}, Generated(text=text))
    assert [element for _, element in elements(path, row, type_=type_)] == found
    assert elements(path, replace(row, generated=Generated(text=text, incomplete=True))) == []
