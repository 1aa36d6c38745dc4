"""`--grader`, `--candidates` and `--by` of `qpdsl run`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qpdsl.cli.exits import Exit
from tests.support.cli import Run, write_rows

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
            assert list(candidate) == ["answer", "score", "tokens", "text", "ballot", "correct"]
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
    assert list(summary["at_k"]) == ["avg", "pass", "pass^", "cons"] and list(summary["at_k"]["cons"]) == [
        "1",
        "2",
        "4",
        "8",
    ]
    assert summary["at_k"]["cons"]["8"]["accuracy"] == pytest.approx(summary["accuracy"], abs=1e-5)
    assert {"kind none", "kind rest", "kind sum"} == summary["groups"].keys()
    assert "pass" in ran.err and "kind sum" in ran.err


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


def test_an_answer_that_the_grader_raises_on_is_wrong_and_told(
    qpdsl: Run, voted: Path, rows: Path, tmp_path: Path
) -> None:
    grader = tmp_path / "own.py"
    grader.write_text("def grade(answer, row):\n    return row['kind'] == 'sum'\n")
    output = tmp_path / "out.jsonl"
    command = ("run", voted, "--input", rows, "--no-greedy", "--grader", f"python:{grader}:grade", "--candidates")
    ran = qpdsl(*command, "--output", output)
    records = [json.loads(line) for line in output.read_text().splitlines()]
    assert ran.code == Exit.ROW_FAILED
    assert [record.get("correct") for record in records] == [True, False, False]
    assert records[2]["answer"] is not None and [one["correct"] for one in records[2]["candidates"]] == [False] * 8
    assert records[2]["error"].startswith("the grader `python:own.py:grade` failed: KeyError: 'kind'")
    words = ran.err.split()
    assert "failed       1 (row `3`: the grader `python:own.py:grade` failed: KeyError: 'kind'" in ran.err
    assert "1/3" in words and "the grader failed on answers of 1 row, which count as wrong" in ran.err

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


def test_a_number_too_large_to_compute_with_is_a_wrong_answer(qpdsl: Run, tmp_path: Path) -> None:
    (tmp_path / "same.qp").write_text(
        "program same(problem: text) -> text {\n  let answer = problem\n  return answer\n}\n"
    )
    given = [("1e9999999", "5"), ("5", "5"), ("3/4", "1/4")]
    rows = write_rows(tmp_path / "in.jsonl", [{"problem": problem, "answer": answer} for problem, answer in given])
    ran = qpdsl("run", tmp_path / "same.qp", "--input", rows, "--grader", "number", "--no-greedy")
    assert ran.code == Exit.OK and "accuracy 1/3" in " ".join(ran.err.split()) and "error" not in ran.out


NO_ANSWER = """
model llm = "zoo/counting"

program p(problem: text) -> text {
  chat user=problem
  generate llm temperature=0 max_tokens=4
  extract answer = /The answer is (\\d+)/
  return answer
}

program fields(problem: text) -> { answer: text } {
  chat user=problem
  generate llm temperature=0 max_tokens=4
  extract answer = /The answer is (\\d+)/
  return { answer: answer }
}

program whole(problem: text) -> text {
  chat user=problem
  generate llm as /[a-z ]{90,}/ temperature=0 max_tokens=4 into answer
  return answer
}
"""


@pytest.mark.parametrize("program", ["p", "fields", "whole"])
def test_a_row_without_an_answer_is_wrong_where_rows_are_graded_and_fails_elsewhere(
    qpdsl: Run, rows: Path, tmp_path: Path, program: str
) -> None:
    (tmp_path / "none.qp").write_text(NO_ANSWER)
    command = ("run", tmp_path / "none.qp", "--program", program, "--no-greedy", "--input")
    ran = qpdsl(*command, rows)
    assert ran.code == Exit.OK
    assert [(row["answer"], row["correct"], bool(row["unanswered"])) for row in ran.records] == [
        (None, False, True)
    ] * 3
    assert not any("error" in row for row in ran.records)
    words = " ".join(ran.err.split())
    assert "no answer 3 (row `1`:" in words and "accuracy 0/3" in words and "failed" not in words
    # Every page of the run says the same.
    assert "failed" not in qpdsl("runs", "show", "last").out and "wrong" in qpdsl("runs", "show", "last", "--rows").out
    assert qpdsl("runs", "list", "--format", "json").records[0][0]["failed"] == 0
    compared = qpdsl("diff", "last", "last")
    assert "failed" not in compared.out + compared.err
    swept = qpdsl("eval", tmp_path / "none.qp", "--program", program, "--input", rows, "--format", "json")
    cell = json.loads(swept.out)["cells"][0]
    assert (swept.code, cell["failed"], cell["accuracy"]) == (Exit.OK, 0, 0.0)

    bare = write_rows(tmp_path / "bare.jsonl", [{"problem": "Ann has 3 pens. How many pens does Ann have?"}])
    ran = qpdsl(*command, bare)
    assert ran.code == Exit.ROW_FAILED and "error" in ran.records[0] and "unanswered" not in ran.records[0]


def test_a_row_that_fails_is_wrong_whatever_the_grader_says_of_it(
    qpdsl: Run, voted: Path, rows: Path, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text("def grade(answer):\n    return True\n")
    options = ("--grader", f"python:{tmp_path / 'own.py'}:grade", "--row-timeout", "0.0001", "--no-greedy")
    ran = qpdsl("run", voted, "--input", rows, *options)
    assert ran.code == Exit.ROW_FAILED and [row["correct"] for row in ran.records] == [False] * 3
    assert "failed 3 (row `1`: timed out" in " ".join(ran.err.split())


def test_the_majority_is_that_of_the_programs_own_vote(qpdsl: Run, tmp_path: Path) -> None:
    text = 'each one in ["5", "12", "12.0"] {\n  let answer = one\n}\nvote answer equal=number\nreturn answer\n'
    (tmp_path / "vote.qp").write_text(f"program voted(problem: text) -> text {{\n{text}}}\n")
    rows = write_rows(tmp_path / "in.jsonl", [{"problem": "?", "answer": "12"}])
    output = tmp_path / "out.jsonl"
    ran = qpdsl("run", tmp_path / "vote.qp", "--input", rows, "--candidates", "--json", "--output", output)
    assert ran.code == Exit.OK and ran.records[0]["at_k"]["cons"]["3"]["accuracy"] == 1.0
    assert [one["ballot"] for one in json.loads(output.read_text())["candidates"]] == [0, 1, 1]
