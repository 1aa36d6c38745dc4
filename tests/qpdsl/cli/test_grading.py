"""`--grader`, `--candidates` and `--by` of `qpdsl run`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qpdsl.cli.exits import Exit
from tests.support.cli import Run

VOTED = """\
model llm = "zoo/counting"

program voted(problem: text, n: int = 8) -> text {
  chat user=problem
  generate llm n=n temperature=0.8 max_tokens=60
  extract answer = /The answer is (-?\\d+)/
  vote answer
}
"""
JUDGE = """\
model other = "zoo/counting"

program judge(answer: text, reference: text) -> bool {
  chat user="Is {answer} {reference}?"
  generate other as choice("yes", "no") temperature=0
  return text == "yes" or answer == reference
}
"""


@pytest.fixture
def voted(tmp_path: Path) -> Path:
    (tmp_path / "voted.qp").write_text(VOTED)
    return tmp_path / "voted.qp"


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    problems = [
        {"problem": "Ann has 3 pens. Ann buys 4 more. How many pens does Ann have?", "answer": "7 pens", "kind": "sum"},
        {"problem": "Tom has 9 eggs. Tom loses 4. How many eggs does Tom have?", "answer": "5", "kind": "rest"},
        {"problem": "Eva has 2 cups. Eva buys 1 more. How many cups does Eva have?", "answer": ["3", "three"]},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(problem) + "\n" for problem in problems))
    return path


def test_candidates_are_the_rows_of_the_vote_and_the_first_of_more(qpdsl: Run, voted: Path, rows: Path) -> None:
    command = ("run", voted, "--input", rows, "--no-greedy", "--candidates")
    eight, four = (qpdsl(*command, "--set", f"n={n}").records for n in (8, 4))
    for more, fewer in zip(eight, four, strict=True):
        assert len(more["candidates"]) == 8 and more["candidates"][:4] == fewer["candidates"]
        for candidate in more["candidates"]:
            assert list(candidate) == ["answer", "score", "tokens", "text", "correct"]
            said = candidate["text"].rpartition("The answer is ")[2].strip(".") if candidate["answer"] else None
            assert candidate["answer"] == said
        answers = [candidate["answer"] for candidate in more["candidates"] if candidate["answer"] is not None]
        assert more["answer"] == max(dict.fromkeys(answers), key=answers.count)
    naive = qpdsl(*command, "--plan", "naive").records
    assert [row["candidates"] for row in naive] == [row["candidates"] for row in eight]
    plain = qpdsl("run", voted, "--input", rows, "--no-greedy").records
    assert [row["answer"] for row in plain] == [row["answer"] for row in eight]


def test_the_summary_tells_every_k_and_every_group(qpdsl: Run, voted: Path, rows: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    options = ("--candidates", "--by", "kind", "--grader", "number", "--json", "--output", output)
    ran = qpdsl("run", voted, "--input", rows, *options)
    assert ran.code == Exit.OK
    summary, records = ran.records[0], [json.loads(line) for line in output.read_text().splitlines()]
    right = [candidate["correct"] for record in records for candidate in record["candidates"]]
    assert summary["at_k"]["pass"]["1"]["accuracy"] == pytest.approx(sum(right) / 24, abs=1e-5)
    assert list(summary["at_k"]) == ["pass", "maj"] and list(summary["at_k"]["maj"]) == ["1", "2", "4", "8"]
    assert summary["at_k"]["maj"]["8"]["accuracy"] == pytest.approx(summary["accuracy"], abs=1e-5)
    assert {"kind none", "kind rest", "kind sum"} == summary["groups"].keys()
    assert "pass@k" in ran.err and "kind sum" in ran.err


def test_graders_say_what_is_right(qpdsl: Run, voted: Path, rows: Path, tmp_path: Path) -> None:
    (tmp_path / "judge.qp").write_text(JUDGE)
    (tmp_path / "own.py").write_text("def grade(reference, row):\n    return row['kind'] == 'sum' if row else None\n")

    def verdicts(grader: str) -> list[object]:
        ran = qpdsl("run", voted, "--input", rows, "--no-greedy", "--grader", grader)
        assert ran.code == Exit.OK
        return [record.get("correct") for record in ran.records]

    answers = [record["answer"] for record in qpdsl("run", voted, "--input", rows, "--no-greedy").records]
    assert verdicts("number") == [answer == right for answer, right in zip(answers, "753", strict=True)]
    assert verdicts("equal") == [False, answers[1] == "5", answers[2] == "3"]
    assert verdicts(f"python:{tmp_path / 'own.py'}:grade") == [True, False, None]
    assert verdicts(f"judge:{tmp_path / 'judge.qp'}")[1] in (True, False)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--grader", "code"), "runs code that a model wrote"),
        (("--grader", "ifeval"), "can grade none of the rows"),
        (("--by", "kin"), "did you mean `kind`"),
        (("--grader", "judge:nowhere.qp"), "nowhere.qp"),
    ],
)
def test_what_cannot_be_graded_is_refused_before_anything_runs(
    qpdsl: Run, voted: Path, rows: Path, options: tuple[str, ...], words: str
) -> None:
    ran = qpdsl("run", voted, "--input", rows, *options)
    assert ran.code == Exit.USAGE and words in ran.err and ran.out == ""


def test_grading_is_about_rows(qpdsl: Run, voted: Path) -> None:
    ran = qpdsl("run", voted, "--set", "problem=x", "--candidates")
    assert ran.code == Exit.USAGE and "`--candidates` needs `--input`" in ran.err


def test_a_row_whose_grader_raises_fails_and_the_others_are_graded(
    qpdsl: Run, voted: Path, rows: Path, tmp_path: Path
) -> None:
    grader = tmp_path / "own.py"
    grader.write_text("def grade(answer, row):\n    return row['kind'] == 'sum'\n")
    output = tmp_path / "out.jsonl"
    command = ("run", voted, "--input", rows, "--no-greedy", "--grader", f"python:{grader}:grade", "--candidates")
    ran = qpdsl(*command, "--output", output)
    records = [json.loads(line) for line in output.read_text().splitlines()]
    assert ran.code == Exit.ROW_FAILED
    assert [record.get("correct") for record in records] == [True, False, None]
    assert records[2]["answer"] is not None and [one["correct"] for one in records[2]["candidates"]] == [None] * 8
    assert records[2]["error"].startswith("the grader `python:own.py:grade` failed: KeyError: 'kind'")
    words = ran.err.split()
    assert "failed       1 (row `3`: the grader `python:own.py:grade` failed: KeyError: 'kind'" in ran.err
    assert "1/2" in words and "not graded   1" in ran.err

    shown = qpdsl("runs", "show", "last", "--rows")
    assert "failed: the grader" in shown.out
    grader.write_text("def grade(answer, row):\n    return row.get('kind') == 'sum'\n")
    ran = qpdsl(*command, "--reuse")
    assert ran.code == Exit.OK and "reused 3 rows" in ran.err
    assert [record["correct"] for record in ran.records] == [True, False, False]


GRADERS = {
    "nothing": "raise SystemExit",
    "words": "return 'yes'",
    "nan": "return float('nan')",
    "many": "return 2",
    "deep": "return grade(answer)",
}


@pytest.mark.parametrize("body", GRADERS.values(), ids=GRADERS)
def test_whatever_a_grader_does_the_row_is_kept(qpdsl: Run, voted: Path, rows: Path, tmp_path: Path, body: str) -> None:
    (tmp_path / "own.py").write_text(f"def grade(answer):\n    {body}\n")
    ran = qpdsl("run", voted, "--input", rows, "--no-greedy", "--grader", f"python:{tmp_path / 'own.py'}:grade")
    assert ran.code == Exit.ROW_FAILED and len(ran.records) == 3
    assert all(record["answer"] and "the grader `python:own.py:grade`" in record["error"] for record in ran.records)
