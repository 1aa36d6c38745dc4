"""Python scorers and extractors: what they are given, what they may give, and how their errors read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from qpdsl.executor.engine.paged_engine import PagedEngine
from qpdsl.executor.events.stream import EventStream
from qpdsl.executor.runtime.instance.candidates import Candidates, Generated, Row
from qpdsl.executor.runtime.instance.functions import PythonFunction
from qpdsl.executor.runtime.instance.instance import Instance, RowError, Services
from qpdsl.executor.runtime.scoring.python_functions import python_extract, python_score
from qpdsl.executor.runtime.scoring.score import log_prob
from qpdsl.executor.text.context import Context
from qpdsl.grammar.source import Span
from qpdsl.planner.plan import ops
from tests.support.executor.rows import expr, name

NOWHERE = Span(0, 0)
TEXTS = ("one two", "three", "one two")
ROWS: Candidates = tuple(
    Row(
        Context(turns=(("user", "What?"),)),
        (index,),
        {"text": text, "k": 2},
        Generated(text=text, logprob=-1.5, sampled=3, least=-1.0),
    )
    for index, text in enumerate(TEXTS)
)


def instance(*functions: PythonFunction) -> Instance:
    known = {function.name: function for function in functions}
    return Instance("", Services(PagedEngine(), {}, {}, EventStream(), known), {}, 0)


def scored(call: Callable[..., Any], batched: bool = False, rows: Candidates = ROWS) -> list[object]:
    op = ops.PythonScore(stage=0, span=NOWHERE, function="f", into=name("score"))
    rows_out = asyncio.run(python_score(op, rows, instance(PythonFunction("f", call, "all" if batched else "one"))))
    return [row.columns["score"] for row in rows_out]


def extracted(call: Callable[..., Any], returns: str = "text", rows: Candidates = ROWS) -> list[object]:
    op = ops.PythonExtract(stage=0, span=NOWHERE, column=name("x"), function="f")
    function = PythonFunction("f", call, kind="extractor", returns=returns)
    return [row.columns["x"] for row in asyncio.run(python_extract(op, rows, instance(function)))]


async def later(text: str) -> int:
    await asyncio.sleep(0)
    return len(text)


async def all_later(texts: Sequence[str], rows: Sequence[dict[str, Any]]) -> list[int]:
    return [len(text) * row["k"] for text, row in zip(texts, rows, strict=True)]


class Object:
    def __call__(self, text: str) -> int:
        return len(text)


@pytest.mark.parametrize(
    ("call", "batched", "scores"),
    [
        (len, False, [7, 5, 7]),
        (lambda answer: len(answer), False, [7, 5, 7]),
        (lambda text, problem: len(text) + len(problem), False, [12, 10, 12]),
        (lambda row: row["k"], False, [2, 2, 2]),
        (lambda solution, row: len(solution) * row["k"], False, [14, 10, 14]),
        (lambda *, problem, text: len(problem) - len(text), False, [-2, 0, -2]),
        (lambda text: np.float32(len(text)), False, [7, 5, 7]),
        (lambda text: 1 / 3, False, [0.33333] * 3),
        (later, False, [7, 5, 7]),
        (lambda texts: [len(text) for text in texts], True, [7, 5, 7]),
        (lambda texts: np.array([len(text) for text in texts]), True, [7, 5, 7]),
        (lambda text, problems: [len(p) for p in problems], True, [5, 5, 5]),
        (all_later, True, [14, 10, 14]),
        (Object(), False, [7, 5, 7]),
    ],
)
def test_a_function_gets_what_it_asks_for(call: Callable[..., Any], batched: bool, scores: list[float]) -> None:
    assert scored(call, batched) == scores


def test_equal_content_is_shown_once() -> None:
    calls: list[str] = []
    assert scored(lambda text: calls.append(text) or len(calls)) == [1, 2, 1]  # type: ignore[func-returns-value]
    assert calls == ["one two", "three"]


@pytest.mark.parametrize(("per_row", "shown"), [(False, [TEXTS, TEXTS]), (True, [TEXTS[:2]])])
def test_a_batched_function_is_shown_all_rows_each_time_unless_it_compares_none(
    per_row: bool, shown: list[tuple[str, ...]]
) -> None:
    batches: list[tuple[str, ...]] = []

    def longest(texts: Sequence[str]) -> list[float]:
        batches.append(tuple(texts))
        return [len(text) / max(map(len, texts)) for text in texts]

    own = instance(PythonFunction("f", longest, "batch" if per_row else "all"))
    op = ops.PythonScore(stage=0, span=NOWHERE, function="f", into=name("score"))
    for _ in range(2):
        rows = asyncio.run(python_score(op, ROWS, own))
        assert [row.columns["score"] for row in rows] == [1.0, 0.71429, 1.0]
    assert batches == shown
    assert asyncio.run(python_score(op, (), own)) == () and batches == shown


def test_a_function_that_asks_for_the_problem_is_shown_what_the_program_says() -> None:
    seen: list[tuple[str, str]] = []
    call = PythonFunction("f", lambda text, problem: seen.append((text, problem)) or 1)  # type: ignore[func-returns-value]
    rows = (*ROWS[:1], replace(ROWS[1], columns={"asked": "Why?"}))
    op = ops.PythonScore(stage=0, span=NOWHERE, function="f", into=name("score"), given=expr("asked"))
    scores = [row.columns["score"] for row in asyncio.run(python_score(op, rows, instance(call)))]
    assert scores == [None, 1.0] and seen == [("three", "Why?")]


def divided(text: str) -> float:
    none = 0
    return len(text) / none


@pytest.mark.parametrize(
    ("call", "batched", "reason"),
    [
        (
            divided,
            False,
            r"Python function `f` failed: ZeroDivisionError: division by zero \(test_functions.py, line \d+\)",
        ),
        (lambda text, other: 0, False, r"Python function `f` failed: TypeError: .*missing 1 required.*'other'"),
        (lambda text: "high", False, "Python scorer `f` must give a number, not a str"),
        (lambda text: None, False, "Python scorer `f` must give a number, not None"),
        (lambda text: True, False, "Python scorer `f` must give a number, not True"),
        (lambda text: float("nan"), False, "Python scorer `f` must give a finite number, not nan"),
        (lambda texts: [1.0], True, "Python function `f` must give a list of 3, not 1 values"),
        (lambda texts: 1.0, True, "Python function `f` must give a list of 3, not float"),
    ],
)
def test_a_function_that_fails_is_named(call: Callable[..., Any], batched: bool, reason: str) -> None:
    with pytest.raises(RowError, match=reason):
        scored(call, batched)


def test_an_extractor_gives_its_type_or_none() -> None:
    assert extracted(lambda text: text.split()[0]) == ["one", "three", "one"]
    assert extracted(lambda text: None) == [None] * 3
    assert extracted(lambda text: len(text), "float") == [7.0, 5.0, 7.0]
    with pytest.raises(RowError, match="Python extractor `f` must give int or None, not a str"):
        extracted(lambda text: text, "int")
    cut = tuple(Row(row.context, row.path, row.columns, Generated(text="12", incomplete=True)) for row in ROWS[:1])
    assert extracted(lambda text: text, rows=cut + ROWS[1:2]) == [None, "three"]


def test_the_log_probability_is_a_score() -> None:
    scores = {}
    for reduce in ("sum", "mean"):
        op = ops.LogProb(stage=0, span=NOWHERE, reduce=reduce, into=name("sure"))
        empty = Row(None, (), {}, Generated())
        scores[reduce] = [row.columns["sure"] for row in asyncio.run(log_prob(op, (ROWS[0], empty), instance()))]
    assert scores == {"sum": [-1.5, 0.0], "mean": [-0.5, None]}
