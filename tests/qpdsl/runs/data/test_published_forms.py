"""Benchmarks in their published form: `--dataset NAME` finds the problem, the answer, the id and the grader."""

from __future__ import annotations

import asyncio
import base64
import json
import pickle
import zlib
from pathlib import Path
from typing import Any

import pytest

from qpdsl.errors import DataError, UsageError
from qpdsl.runs.data.input_row import InputData
from qpdsl.runs.data.known_sets import FORMS, form_of
from qpdsl.runs.data.rows import read_rows
from qpdsl.runs.graders.known_graders import grader_named
from qpdsl.session.settings import DataSettings
from tests.qpdsl.runs.data.plans import PLAN, planned
from tests.support.cli import Run
from tests.support.paths import ROOT

FILES = Path(__file__).parent / "published"


def read(file: str, dataset: str) -> InputData:
    return read_rows(FILES / file, PLAN, {}, DataSettings(dataset=dataset))


def read_text(text: str, dataset: str, folder: Path) -> InputData:
    file = folder / "d.jsonl"
    file.write_text(text, "utf-8")
    return read_rows(file, PLAN, {}, DataSettings(dataset=dataset))


def problems(data: InputData) -> list[Any]:
    return [row.arguments["problem"] for row in data.rows]


def test_gsm8k() -> None:
    data = read("gsm8k.jsonl", "gsm8k")
    assert data.grader == "number"
    assert [row.reference for row in data.rows] == ["12", "1450", "-3"]
    assert [row.id for row in data.rows] == ["1", "2", "3"]
    assert str(problems(data)[0]).startswith("Mia has 3 boxes")


def test_gsm8k_with_the_answers_already_taken_out(tmp_path: Path) -> None:
    text = '{"id": "g-0", "problem": "p", "answer": "1,018"}\n'
    assert form_of(json.loads(text)) is None
    data = read_text(text, "gsm8k", tmp_path)
    assert (data.rows[0].id, data.rows[0].reference) == ("g-0", "1018")


def test_math() -> None:
    data = read("math.jsonl", "math")
    assert data.grader == "math"
    assert [row.reference for row in data.rows] == [r"\frac{1}{4}", "4", "2"]
    assert [row.fields.get("level") for row in data.rows] == [2, 1, None]
    assert [row.fields["subject"] for row in data.rows] == ["Algebra", "Geometry", "Geometry"]


def test_math500() -> None:
    data = read("math500.jsonl", "math500")
    assert data.grader == "math" and [row.id for row in data.rows] == ["test/algebra/1.json", "test/precalculus/2.json"]
    assert data.rows[1].reference == r"\left( 3, \frac{\pi}{2} \right)" and data.rows[1].fields["level"] == 2


def test_aime() -> None:
    data = read("aime.jsonl", "aime")
    assert data.grader == "number" and [(row.id, row.reference) for row in data.rows] == [
        ("2024-I-1", "4"),
        ("2024-II-2", "25"),
    ]


def test_humaneval() -> None:
    (row,) = read("humaneval.jsonl", "humaneval").rows
    assert row.id == "HumanEval/0" and row.reference is None
    assert row.arguments["problem"] == row.fields["prompt"] and row.fields["entry_point"] == "double"
    source = f"{row.fields['prompt']}    return 2 * x\n{row.fields['tests'][0]}"
    exec(compile(source, "solution", "exec"), {})
    with pytest.raises(AssertionError):
        exec(compile(source.replace("2 * x\n", "x\n"), "solution", "exec"), {})


@pytest.mark.parametrize(
    ("file", "setup"), [("mbpp.jsonl", "import math"), ("mbpp_sanitized.json", "import math\nimport re")]
)
def test_mbpp(file: str, setup: str) -> None:
    (row,) = read(file, "mbpp").rows
    assert row.id in ("11", "12") and row.fields["setup"] == setup and row.reference is None
    problem = str(row.arguments["problem"])
    assert problem.startswith("Write a function") and all(test in problem for test in row.fields["tests"])


def test_ifeval() -> None:
    data = read("ifeval.jsonl", "ifeval")
    assert data.grader == "ifeval" and [row.id for row in data.rows] == ["1000", "1001"]
    assert data.rows[0].fields["kwargs"] == [{}, {"relation": "at least", "num_words": 30}]
    assert data.rows[1].fields["kwargs"] == [{}]
    assert data.rows[1].fields["instruction_id_list"] == ["change_case:english_lowercase"]


def test_gpqa() -> None:
    data = read("gpqa.jsonl", "gpqa")
    assert data.grader == "choice" and [row.id for row in data.rows] == ["rec1", "rec2"]
    assert [row.fields["domain"] for row in data.rows] == ["Biology", "Physics"]
    for row, right in zip(data.rows, ("Oxygen", "The muon"), strict=True):
        assert f"\n{row.reference}) {right}" in str(row.arguments["problem"])


def test_the_options_of_gpqa_are_in_the_order_of_a_seed() -> None:
    orders = {}
    for seed in range(12):
        data = read_rows(FILES / "gpqa.jsonl", PLAN, {}, DataSettings(dataset="gpqa", shuffle=seed or None))
        orders[seed] = {row.id: row.reference for row in data.rows}
    assert {order["rec1"] for order in orders.values()} == {"A", "B", "C", "D"}
    alone = read_rows(FILES / "gpqa.jsonl", PLAN, {}, DataSettings(dataset="gpqa", shuffle=5, limit=1))
    assert alone.rows[0].reference == orders[5][alone.rows[0].id]


def test_mmlu_pro() -> None:
    data = read("mmlu_pro.jsonl", "mmlu_pro")
    assert data.grader == "choice" and [(row.id, row.reference) for row in data.rows] == [("70", "C"), ("71", "A")]
    assert str(problems(data)[0]).startswith("What is 2 + 3?\n\nA) 4\nB) 6\nC) 5\n")
    assert str(problems(data)[0]).endswith("\nJ) 0") and str(problems(data)[1]).endswith("\nC) cold")


def test_livecodebench() -> None:
    data = read("livecodebench.jsonl", "livecodebench")
    program, function = data.rows
    assert data.grader == "code" and (program.id, function.id) == ("abc1_a", "3000")
    assert program.fields["tests"][0] == {"input": "1 2\n", "output": "3\n"} and len(program.fields["tests"]) == 3
    assert "stdin" in str(program.arguments["problem"]) and "class Solution" in str(function.arguments["problem"])
    grader = grader_named("code", allow_code=True)
    answers = {
        "print(sum(map(int, input().split())))": program,
        "class Solution:\n    def large(self, nums, limit):\n        return [n for n in nums if n > limit]": function,
    }
    for answer, row in answers.items():
        assert asyncio.run(grader.grade(answer, row)).correct
        assert not asyncio.run(grader.grade(answer.replace("sum(", "len([*").replace(" > ", " < "), row)).correct
    newer = DataSettings(dataset="livecodebench", where="date >= '2024-09-01'")
    assert [row.id for row in read_rows(FILES / "livecodebench.jsonl", PLAN, {}, newer).rows] == ["3000"]


def test_bfcl(tmp_path: Path) -> None:
    data = read("bfcl.jsonl", "bfcl")
    assert data.grader == "calls" and [row.id for row in data.rows] == ["simple_0", "parallel_0"]
    assert str(problems(data)[0]).startswith("What is the area") and '"name": "area"' in str(problems(data)[0])
    grader = grader_named("calls")
    assert asyncio.run(grader.grade("[area(base=10, height=5)]", data.rows[0])).correct
    record = json.loads((FILES / "bfcl.jsonl").read_text("utf-8").splitlines()[0])
    with pytest.raises(DataError, match="several turns"):
        read_text(json.dumps({**record, "question": record["question"] * 2}) + "\n", "bfcl", tmp_path)


def test_private_tests_that_hold_more_than_a_text_are_not_run(tmp_path: Path) -> None:
    record = json.loads((FILES / "livecodebench.jsonl").read_text("utf-8").splitlines()[0])
    for found in (print, [1], b"x"):
        record["private_test_cases"] = base64.b64encode(zlib.compress(pickle.dumps(found))).decode()
        with pytest.raises(DataError, match="the private tests cannot be read"):
            read_text(json.dumps(record) + "\n", "livecodebench", tmp_path)


def test_the_shipped_problems_are_a_known_set_too() -> None:
    data = read_rows(
        ROOT / "programs" / "data" / "counting-500.jsonl", PLAN, {}, DataSettings(dataset="counting", limit=2)
    )
    assert [(row.id, row.reference, row.fields) for row in data.rows] == [
        ("count-001", "288", {"level": 1}),
        ("count-002", "22", {"level": 2}),
    ]


@pytest.mark.parametrize("file", sorted(path.name for path in FILES.iterdir()))
def test_a_published_file_is_recognized_by_its_fields(file: str) -> None:
    name = file.partition(".")[0].removesuffix("_sanitized")
    text = (FILES / file).read_text("utf-8")
    record = json.loads(text)[0] if file.endswith(".json") else json.loads(text.splitlines()[0])
    found = form_of(record)
    assert found is not None and found.name == name


def test_a_run_without_the_name_is_told_it(qpdsl: Run) -> None:
    ran = qpdsl("run", "greedy", "--input", FILES / "gsm8k.jsonl")
    assert ran.err.splitlines()[-1] == "help: these look like the fields of gsm8k: `--dataset gsm8k` reads them"


def test_a_run_that_would_hold_answers_against_whole_solutions_is_told() -> None:
    data = read_rows(FILES / "gsm8k.jsonl", planned("question: text, n: int = 1"), {})
    assert data.notes == ("note: these look like the fields of gsm8k: `--dataset gsm8k` reads them",)


def test_one_line_says_what_was_understood() -> None:
    data = read("gsm8k.jsonl", "gsm8k")
    assert data.notes == (
        f"note: 3 rows of {FILES / 'gsm8k.jsonl'} (JSON lines, gsm8k): `problem` from `question`, "
        "`answer` from `answer` (behind `####`) and the id from the line's number",
    )


def test_the_problem_goes_to_the_text_parameter_that_lacks_a_value() -> None:
    plan = planned('system: text = "s", task: text, hint: text = "", n: int = 1')
    data = read_rows(FILES / "gsm8k.jsonl", plan, {}, DataSettings(dataset="gsm8k"))
    assert str(data.rows[0].arguments["task"]).startswith("Mia") and data.rows[0].arguments["system"] == "s"


def test_a_mapping_goes_before_the_form() -> None:
    options = DataSettings(dataset="gsm8k", maps=("problem=Q: {question}",))
    data = read_rows(FILES / "gsm8k.jsonl", PLAN, {}, options)
    assert str(problems(data)[0]).startswith("Q: Mia") and data.rows[0].reference == "12"


def test_a_form_that_the_data_does_not_have_is_refused() -> None:
    with pytest.raises(UsageError, match="the data has no field `problem`; its fields are `question`, `answer`"):
        read("gsm8k.jsonl", "math")
    with pytest.raises(UsageError, match="no data set is known as `gsm8`; did you mean `gsm8k`"):
        read("gsm8k.jsonl", "gsm8")


def test_a_solution_without_an_answer_is_a_fault_of_its_line(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        read_text('{"problem": "p", "level": "Level 1", "type": "t", "solution": "none"}\n', "math", tmp_path)
    assert caught.value.message.endswith(r":1: there is no `\boxed{…}` in `solution`: none")


def test_every_form_names_a_problem_and_a_grader() -> None:
    for name, form in FORMS.items():
        assert form.name == name and form.grader and form.problem.reads and form.title and form.origin
