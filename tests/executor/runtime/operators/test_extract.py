"""`extract`: what a regex or a JSON path finds in a row's text."""

from __future__ import annotations

import asyncio

import pytest

from qpdsl.executor.runtime.instance.candidates import Generated, Row
from qpdsl.executor.runtime.operators.extract import extract
from qpdsl.grammar import ast
from qpdsl.grammar.words import Type
from qpdsl.planner.plan import ops
from tests.support.executor.rows import NOWHERE, instance


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
        (ast.JsonPath(("a",), span=NOWHERE), '{"a": [NaN]}', None),
        (ast.JsonPath(("a",), span=NOWHERE), '{"a": [1e999]}', None),
        (ast.JsonPath(("a",), span=NOWHERE), f'{{"a": {"1" * 5000}}}', None),
        (ast.Regex(r"^(a+)+$", span=NOWHERE), "a" * 5000 + "b", None),
    ],
)
def test_extract(pattern: ast.Regex | ast.JsonPath, text: str, value: str | None) -> None:
    op = ops.Extract(stage=0, span=NOWHERE, column="x", pattern=pattern)
    (row,) = asyncio.run(extract(op, (Row(None, (), {}, Generated(text=text)),), instance()))
    assert row.columns["x"] == value


@pytest.mark.parametrize(
    ("type", "number", "value"),
    [("int", "1" + "0" * 400, 10**400), ("float", "1" + "0" * 400, None), ("float", "3", 3.0), ("int", "2.5", None)],
)
def test_a_number_of_any_size(type: Type, number: str, value: float | None) -> None:
    op = ops.Extract(stage=0, span=NOWHERE, column="x", pattern=ast.JsonPath(("a",), span=NOWHERE), type=type)
    (row,) = asyncio.run(extract(op, (Row(None, (), {}, Generated(text=f'{{"a": {number}}}')),), instance()))
    assert row.columns["x"] == value
