"""Each grader on answers as models write them. The cases are lines of a data file."""

import asyncio
import json
import pickle
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpdsl.errors import UserError
from qpdsl.executor.runtime.operators.numbers import last_number
from qpdsl.executor.runtime.run import InstanceResult
from qpdsl.runs.data.input_row import InputRow
from qpdsl.runs.graders.grader import GraderError
from qpdsl.runs.graders.known_graders import grader_named
from qpdsl.runs.row_outcome import outcome
from tests.support.timing import assert_quick, cpu_seconds

FOLDER = Path(__file__).parent
# Our own cases, and the forms that harnesses of evaluation ask for and read, by where they are from.
FILES = [FOLDER / "graded.jsonl", *sorted((FOLDER / "published").iterdir())]
CASES = [json.loads(line) for file in FILES for line in file.read_text(encoding="utf-8").splitlines()]


def row(case: dict[str, Any]) -> InputRow:
    right = case.get("right")
    return InputRow("1", {}, tuple(right) if isinstance(right, list) else right, case.get("fields", {}))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['grader']}: {str(case['answer'])[:40]}")
def test_grades(case: dict[str, Any]) -> None:
    grader = grader_named(case["grader"], allow_code=True)
    assert grader.applies(row(case))
    grade = asyncio.run(grader.grade(case["answer"], row(case)))
    assert grade.correct is case["correct"]
    assert case.get("points", grade.points) == pytest.approx(grade.points)
    again = pickle.loads(pickle.dumps(grader))
    assert (again.name, again.version) == (grader.name, grader.version)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1,000", "1000"), ("12,345,678.5", "12345678.5"), ("-1,000", "-1000"), ("$1,234.50", "1234.5"),
        ("1 000", "1000"), ("1\u202f000\u202f000", "1000000"), ("1\u2007000", "1000"), (r"1\,000", "1000"),
        ("1{,}000", "1000"),
        ("1'000", "1000"), ("1’000’000.25", "1000000.25"), ("-1'000", "-1000"), ("CHF 12'500.-", "12500"),
        ("1_000", "1000"), ("1_000_000.5", "1000000.5"), ("x = 10_000", "10000"),
        ("1,00,000", "100000"), ("12,34,56,789", "123456789"), ("Rs 5,00,000.75", "500000.75"), ("1,00,000/4", "25000"),
        ("1/1,000", "0.001"), ("1'000 of 2'000", "2000"),
        (r"\frac{1}{-2}", "-0.5"), ("-1/-2", "0.5"), (r"-\frac{1}{-2}", "0.5"), ("1/(-2)", "-0.5"),
        ("3x10^5", "300000"), ("3 x 10^{-2}", "0.03"), ("3 × 10⁵", "300000"), ("3×10⁻²", "0.03"), ("3*10**5", "300000"),
        ("٣٫٥", "3.5"), ("١٬٢٣٤", "1234"), ("_5_", "5"), ("__-5__.", "-5"), ("2 x 10", "10"),
        ("negative 5", "-5"), ("x is minus 5.", "-5"), ("10 minus 5", "5"), ("y = minus 3/4", "-0.75"),
        # Lists: the last.
        ("1,2,3", "3"), ("(10,20)", "20"), ("1, 2", "2"), ("'5'", "5"), ("'5','6'", "6"), ("0,5", "5"), ("1-10", "10"),
        # No numbers.
        ("1..10", None), ("1...10", None), ("1.000.000", None), ("1,0000", None), ("1,000,00", None), ("1,00", None),
        ("1'00", None), ("5'10", None), ("1_00", None), ("1__000", None), ("x_1", None), ("3.1.2", None),
        ("10^3", None), ("10⁵", None), ("2⁵", None), ("1,00,00", None), ("3/4/2024", None), ("", None), ("three", None),
    ],
)  # fmt: skip
def test_the_last_number_of_a_text(text: str, number: str | None) -> None:
    assert last_number(text) == (None if number is None else Decimal(number))
    assert last_number(f"First 7, and then {text}") == Decimal(number or 7)


@pytest.mark.parametrize(
    "fields",
    [{"tests": 5}, {"tests": {"a": "x"}}, {"tests": ["x", 5]}, {"tests": "x", "setup": 5}, {"tests": [{"input": "x"}]}],
)
def test_tests_that_cannot_be_run_are_no_tests_passed(fields: dict[str, Any]) -> None:
    grader, own = grader_named("code", allow_code=True), InputRow("1", {}, None, fields)
    assert grader.applies(own)
    with pytest.raises(GraderError, match=r"the grader `code`: the field `(tests|setup)` is no"):
        asyncio.run(grader.grade("x = 1", own))


@pytest.mark.parametrize("code", ["not " * 50_000 + "1", "-" * 100_000 + "1", "(" * 1_000, "x = 1\0"])
def test_code_that_cannot_be_parsed_is_wrong(code: str) -> None:
    fields = {"tests": "assert True", "prompt": "def f(x):\n", "entry_point": "f"}
    grade = asyncio.run(grader_named("code", allow_code=True).grade(code, InputRow("1", {}, None, fields)))
    assert grade.correct is False


@pytest.mark.parametrize("piece", ["11,", "111,", "1'000'", "1 ", "1 1/", r"\boxed{", "-", "_1_", "10⁵", "1,00,"])
def test_a_long_text_is_read_in_time_in_proportion_to_it(piece: str) -> None:
    assert_quick(lambda: cpu_seconds(lambda: last_number(piece * 4_000)), 0.2)


@pytest.mark.parametrize("name", ["equal", "text", "number", "math", "choice", "json", "code", "ifeval", "calls"])
def test_nothing_to_hold_an_answer_against_is_no_wrong_answer(name: str) -> None:
    assert not grader_named(name, allow_code=True).applies(InputRow("1", {}))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("maths", "did you mean `math`"),
        ("number(x)", "takes a number above 0"),
        ("number(-1)", "takes a number above 0"),
        ("code", "`--allow-code` allows it"),
        ("python:", "takes python:FILE.py:FUNCTION"),
        ("python:none.py:f", "there is no Python file"),
        ("judge:", "takes judge:PROGRAM"),
    ],
)
def test_what_is_no_grader_is_said(name: str, words: str) -> None:
    with pytest.raises(UserError) as raised:
        grader_named(name)
    assert words in f"{raised.value.message} {raised.value.help}"


def function(folder: Path, text: str) -> str:
    (folder / "own.py").write_text(text)
    return f"python:{folder / 'own.py'}:grade"


@pytest.mark.parametrize(
    ("text", "correct", "points"),
    [
        ("def grade(answer, reference): return answer == reference", True, 1.0),
        ("async def grade(answer): return len(answer) / 10", False, 0.3),
        ("def grade(row): return row['level'] < 3", True, 1.0),
        ("def grade(answer): return None", None, None),
    ],
)
def test_a_function_grades(tmp_path: Path, text: str, correct: bool | None, points: float | None) -> None:
    grader = grader_named(function(tmp_path, text))
    grade = asyncio.run(grader.grade("abc", InputRow("1", {}, "abc", {"level": 2})))
    assert (grade.correct, grade.points) == (correct, points)
    assert pickle.loads(pickle.dumps(grader)).version == grader.version


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def grade(answer): return 7", "gave 7, not True or False"),
        ("def grade(answer): raise ValueError('no')", "`python:own.py:grade` failed: ValueError: no"),
        ("def grade(answer): raise SystemExit", "failed: SystemExit"),
        ("def grade(question): return True", "must take some of answer, reference, row"),
        ("def other(answer): return True", "has no function `grade`"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_function_that_does_not_do_is_said(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises((UserError, GraderError), match=words):
        asyncio.run(grader_named(function(tmp_path, text)).grade("abc", InputRow("1", {}, "abc")))


def test_every_instruction_is_tried_both_ways() -> None:
    from qpdsl.runs.graders.instruction_answer import CHECKS

    tried = {
        (case["fields"]["instruction_id_list"][0], case["correct"]) for case in CASES if case["grader"] == "ifeval"
    }
    assert tried >= {(name, correct) for name in CHECKS for correct in (True, False)}


RIGHT = {"equal": "18", "text": "Paris", "number": "18", "number(0.01)": "1e400", "choice": "B", "json": '{"a": 1}'}
# What models write, in pieces that graders look for.
WRITTEN = st.lists(
    st.one_of(
        st.sampled_from(
            [
                "\\boxed{",
                "}",
                "\\frac{",
                "#### ",
                "The answer is ",
                "(",
                ")",
                "1e9999999",
                "-",
                "3/0",
                "1/3",
                ",000",
                "½",
            ]
        ),
        st.sampled_from(
            ["<answer>", "</answer>", "B", "a", "I", "[" * 2000, "]" * 2000, "{", '"a": ', "NaN", "1" * 5000]
        ),
        st.text(max_size=5),
    ),
    max_size=8,
).map("".join)


@pytest.mark.parametrize("name", RIGHT)
@given(answer=WRITTEN)
def test_no_answer_is_too_odd_to_be_graded(name: str, answer: str) -> None:
    for right in (RIGHT[name], answer):
        for case in (answer, [answer], {"a": answer}):
            grader, row = grader_named(name), InputRow("1", {}, right)
            if grader.applies(row):
                assert asyncio.run(grader.grade(case, row)).correct in (True, False)


@pytest.mark.parametrize(
    "answer",
    ["answer" + " " * 50_000, "answer is " + "\n" * 50_000 + "B", "1" * 50_000, "1 " * 25_000, "$ - " * 20_000],
)
@pytest.mark.parametrize("name", ["equal", "text", "number", "choice"])
def test_a_long_answer_is_graded_at_once(name: str, answer: str) -> None:
    grade = asyncio.run(grader_named(name).grade(answer, InputRow("1", {}, RIGHT[name])))
    assert grade.correct is (name == "choice" and answer.endswith("B"))


@pytest.mark.parametrize(
    ("reference", "answer", "correct"),
    [
        ("12", {"answer": "12", "by": "llm"}, True),
        ("12", {"answer": "13"}, False),
        ("12", {"value": "12"}, False),
        ({"answer": "12"}, {"answer": "12"}, True),
        ({"answer": "12"}, {"answer": "12", "by": "llm"}, False),
    ],
)
def test_the_answer_in_a_record_is_graded_where_no_record_is_right(reference: Any, answer: Any, correct: bool) -> None:
    row, result = InputRow("1", {}, reference), InstanceResult(answer, None, (), 1, 2, 0, 0.1)
    graded = asyncio.run(outcome(row, result, None, grader_named("equal"), with_rows=False))
    assert graded.correct is correct and graded.answer == answer
