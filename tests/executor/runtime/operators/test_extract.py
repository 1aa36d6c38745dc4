"""`extract`: what a regex or a JSON path finds in a row's text."""

from __future__ import annotations

import asyncio
import random
import re

import pytest

from qpdsl.executor.runtime.instance.candidates import Generated, Row
from qpdsl.executor.runtime.operators.answers import boxed
from qpdsl.executor.runtime.operators.extract import extract
from qpdsl.grammar import ast
from qpdsl.grammar.literals.matcher import matcher
from qpdsl.grammar.words import Type
from qpdsl.planner.plan import ops
from qpdsl.planner.values.value import Value
from tests.support.executor.rows import NOWHERE, instance, name
from tests.support.timing import assert_quick, cpu_seconds


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
    op = ops.Extract(stage=0, span=NOWHERE, column=name("x"), pattern=pattern)
    (row,) = asyncio.run(extract(op, (Row(None, (), {}, Generated(text=text)),), instance()))
    assert row.columns["x"] == value


@pytest.mark.parametrize(
    ("type", "number", "value"),
    [("int", "1" + "0" * 400, 10**400), ("float", "1" + "0" * 400, None), ("float", "3", 3.0), ("int", "2.5", None)],
)
def test_a_number_of_any_size(type: Type, number: str, value: float | None) -> None:
    op = ops.Extract(stage=0, span=NOWHERE, column=name("x"), pattern=ast.JsonPath(("a",), span=NOWHERE), type=type)
    (row,) = asyncio.run(extract(op, (Row(None, (), {}, Generated(text=f'{{"a": {number}}}')),), instance()))
    assert row.columns["x"] == value


@pytest.mark.parametrize(
    ("pattern", "which", "text", "value"),
    [
        (r"-?\d+", "last", "it is 4, it is -15", "-15"),
        (r"is (\d)", "last", "is 4, is 5, 6", "5"),
        (r"is (\d)", "all", "is 4, is 5, 6", ("4", "5")),
        (r"z", "last", "y", None),
        (r"z", "all", "y", ()),
        (r"(x)|y", "last", "xy", None),
        (r"(x)|y", "all", "xyx", ("x", "x")),
        (r"\d+$", "last", "1 22", "22"),
        (r"^\w", "all", "ab\nc", ("a",)),
        (r"a*", "all", "baac", ("", "aa", "", "")),
        ("boxed", "last", r"\boxed{1} or \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        ("boxed", "all", r"\boxed{1} and \boxed {x^{2}}", ("1", "x^{2}")),
        ("boxed", "last", r"\boxed{a \} b}", r"a \} b"),
        ("boxed", "last", r"\boxed{7} and \boxed{8", "7"),
        ("boxed", "last", r"\boxed{ \boxed{3} ", "3"),
        ("boxed", "all", "no box", ()),
        ("boxed", "last", "{7}", None),
        ("boxed", "all", r"{ \boxed{{} \boxed{2}", ("2",)),
        (r"a(b){0}", "all", "aba", ()),
        (r"a(b){0}", "last", "a", None),
    ],
)
def test_of_the_matches_the_last_or_all(pattern: str, which: ops.Which, text: str, value: Value) -> None:
    source = name(pattern) if pattern == "boxed" else ast.Regex(pattern, span=NOWHERE)
    op = ops.Extract(stage=0, span=NOWHERE, column=name("x"), pattern=source, which=which)
    cut = Row(None, (), {}, Generated(text=text, incomplete=True))
    whole, none = asyncio.run(extract(op, (Row(None, (), {}, Generated(text=text)), cut), instance()))
    assert whole.columns["x"] == value and none.columns["x"] is None


@pytest.mark.parametrize("piece", [r"\boxed{", r"{\boxed{1}", "{", r"\boxed{}", r"\boxed  "])
def test_boxes_are_found_in_time_in_proportion_to_the_text(piece: str) -> None:
    assert_quick(lambda: cpu_seconds(lambda: list(boxed(piece * 4_000))), 0.1)


@pytest.mark.parametrize("pattern", [r"\d+", r"a|ab|b", r"(a+)b*", r"[ab]?c", r"a+$", r"^a", r"\w{2}", r"[^c]+c$"])
def test_all_matches_are_those_of_python(pattern: str) -> None:
    chance = random.Random(pattern)
    for _ in range(60):
        text = "".join(chance.choices("ab1c \n", k=chance.randint(0, 9)))
        found = [match.text for match in matcher(pattern).all(text)]
        assert found == [match[0] for match in re.finditer(pattern, text)], text
