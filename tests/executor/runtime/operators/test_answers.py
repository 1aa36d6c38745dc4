"""`final_answer` and `last_number`: what they find in `answers.jsonl`, and what its graders say of that.

Its lines are the ways in which models and harnesses end a solution; `right` is the verdict on what is found.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from qpdsl.executor.runtime.instance.candidates import Generated, Row
from qpdsl.executor.runtime.instance.instance import Instance
from qpdsl.executor.runtime.operators.answers import final_answer
from qpdsl.executor.runtime.operators.extract import extract, why_not_found
from qpdsl.grammar import ast
from qpdsl.planner.plan import ops
from qpdsl.runs.data.input_row import InputRow
from qpdsl.runs.graders.known_graders import grader_named
from tests.support.executor.rows import NOWHERE, instance, name
from tests.support.timing import assert_quick, cpu_seconds

CASES = [json.loads(line) for line in Path(__file__).with_name("answers.jsonl").read_text("utf-8").splitlines()]


def extracted(pattern: str, texts: list[str], where: Instance) -> list[Any]:
    op = ops.Extract(stage=0, span=NOWHERE, column=name("x"), pattern=name(pattern))
    rows = tuple(Row(None, (), {"finish": "length"}, Generated(text=text)) for text in texts)
    return [row.columns["x"] for row in asyncio.run(extract(op, rows, where))]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["text"][:40])
def test_answers_in_text(case: dict[str, Any]) -> None:
    found = final_answer(case["text"])
    assert found == (None if case["answer"] is None else (case["answer"], case["rule"]))
    if "last_number" in case:
        assert extracted("last_number", [case["text"]], instance()) == [case["last_number"]]
    grader = case.get("grader", "number")
    if grader != "math" or importlib.util.find_spec("math_verify") is not None:
        row = InputRow("1", {}, case["gold"], {})
        grade = asyncio.run(grader_named(grader).grade(case["answer"], row))
        assert grade.correct is case["right"]


def test_a_run_counts_the_texts_by_the_rule_that_found_their_answer() -> None:
    where = instance()
    texts = [r"\boxed{1}", "Answer: 2", "Answer: 3", "4"]
    assert extracted("final_answer", texts, where) == ["1", "2", "3", None]
    assert where.usage.counts == {"answers_boxed": 1, "answers_stated": 2, "answers_none": 1}


def test_what_found_nothing_is_told_with_the_end_of_a_text_and_what_would_find_something() -> None:
    text = f"{'so ' * 40}it is 5 apples"
    rows = tuple(Row(None, (), {"finish": finish}, Generated(text=text)) for finish in ("length", "eos"))
    said = why_not_found(ast.SoughtText("final_answer", own=True), rows[:1])
    assert said.startswith("`final_answer` found nothing in the text, which was cut off by `max_tokens`")
    assert said.endswith('so so it is 5 apples"; `last_number` would find 5 there') and len(said) < 220
    said = why_not_found(ast.SoughtText("boxed", own=True), rows)
    assert said.startswith("`boxed` found nothing in 2 texts, 1 of them cut off")


@pytest.mark.parametrize(
    "piece",
    [
        "answer ",
        "answer is to ",
        "answer: ",
        "answer:\n",
        "**",
        "*a",
        " ",
        "\\boxed a ",
        "\\boxed a$",
        "1, ",
        "$",
        "\\text{",
        ". ",
    ],
)
def test_answers_are_found_in_time_in_proportion_to_the_text(piece: str) -> None:
    assert_quick(lambda: cpu_seconds(lambda: final_answer(f"The answer is {piece * 4_000}")), 0.2)
