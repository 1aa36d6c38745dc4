"""Each grader on answers as models write them. The cases are lines of a data file."""

import asyncio
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from qpdsl.errors import UserError
from qpdsl.inputs.input_row import InputRow
from qpdsl.measures.grader import GraderError
from qpdsl.measures.graders.known_graders import grader_named

CASES = [json.loads(line) for line in Path(__file__).with_name("graded.jsonl").read_text().splitlines()]


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


@pytest.mark.parametrize("name", ["equal", "text", "number", "math", "choice", "json", "code", "ifeval"])
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
    from qpdsl.measures.graders.instructions import CHECKS

    tried = {
        (case["fields"]["instruction_id_list"][0], case["correct"]) for case in CASES if case["grader"] == "ifeval"
    }
    assert tried >= {(name, correct) for name in CHECKS for correct in (True, False)}
