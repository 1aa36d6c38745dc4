"""`--allow-read` and `--python`: what a program may use besides its own text, for every command that checks one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from qpdsl.cli.exits import Exit
from qpdsl.session.surroundings import read_surroundings
from tests.support.cli import Run, write_rows

SCHEMA = '{"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}'
READING = """\
model llm = "zoo/counting"
schema Person from "../shared/person.json"

program p(note: text) -> Person {
  chat user="Extract the person in this note as JSON: {note}"
  generate llm as Person temperature=0 max_tokens=40
}
"""
SCORED = """\
model llm = "zoo/counting"

program p(problem: text) -> text {
  chat user=problem
  generate llm n=3 temperature=1.5 max_tokens=8
  score shortness
  best by score
  extract size = length
  return "{size}"
}
"""
FUNCTIONS = """\
import qpdsl as qp

@qp.scorer
def shortness(text: str) -> float:
    return -len(text)

@qp.extractor
def length(text: str) -> int:
    return len(text)
"""


@pytest.fixture
def reading(tmp_path: Path) -> Path:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "person.json").write_text(SCHEMA)
    path = tmp_path / "programs" / "p.qp"
    path.parent.mkdir()
    path.write_text(READING)
    return path


@pytest.fixture
def scored(tmp_path: Path) -> Path:
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    path = tmp_path / "p.qp"
    path.write_text(SCORED)
    return path


def test_files_elsewhere_need_the_callers_leave(qpdsl: Run, reading: Path, tmp_path: Path) -> None:
    for command in (["check", reading], ["explain", reading], ["run", reading, "--set", "note=x"]):
        refused = qpdsl(*command)
        assert (refused.code, refused.out) == (Exit.USAGE, "") and "error[QP228]" in refused.err
    assert qpdsl("check", reading, "--allow-read", tmp_path / "shared").code == Exit.OK
    assert qpdsl("explain", reading, "--allow-read", tmp_path).code == Exit.OK
    assert qpdsl("check", reading, "--allow-read", tmp_path / "programs").code == Exit.USAGE
    missing = qpdsl("check", reading, "--allow-read", tmp_path / "none")
    assert missing.code == Exit.USAGE and "there is no folder" in missing.err


def test_a_pipeline_reads_no_files(qpdsl: Run, tmp_path: Path) -> None:
    (tmp_path / "a.lark").write_text("start: /a/\n")
    pipeline = f'prompt "x" | generate llm as grammar("{tmp_path}/a.lark")'
    ran = qpdsl("explain", "-e", pipeline, "--allow-read", tmp_path)
    assert ran.code == Exit.USAGE and "error[QP228]" in ran.err


def test_functions_are_registered_by_the_caller(qpdsl: Run, scored: Path, tmp_path: Path) -> None:
    bare = qpdsl("check", scored)
    assert bare.code == Exit.USAGE and "error[QP201]" in bare.err and "error[QP227]" in bare.err
    functions = tmp_path / "functions.py"
    assert qpdsl("check", scored, "--python", functions).code == Exit.OK
    ran = qpdsl("run", scored, "--python", functions, "--set", "problem=Ann has 2 cards.", "--json", "--rows")
    assert ran.code == Exit.OK
    answer = json.loads(ran.out)
    assert answer["answer"] == str(len(answer["text"])) and answer["score"] == -len(answer["text"])


def test_resuming_with_other_functions_is_another_run(qpdsl: Run, scored: Path, tmp_path: Path) -> None:
    from qpdsl.session.surroundings import read_surroundings

    functions = tmp_path / "functions.py"
    before = read_surroundings(python=[str(functions)]).python
    functions.write_text(FUNCTIONS.replace("-len", "len"))
    assert read_surroundings(python=[str(functions)]).python != before


def test_resuming_with_another_schema_is_another_run(qpdsl: Run, reading: Path, tmp_path: Path) -> None:
    from qpdsl.planner.plan.naive import plan
    from qpdsl.runs.store.fingerprint import digest, operators
    from qpdsl.session.programs import load_program
    from qpdsl.session.surroundings import read_surroundings

    def of() -> str:
        surroundings = read_surroundings(allow_read=[str(tmp_path)])
        return digest(operators(plan(load_program(str(reading), None, None, surroundings)).ops))

    before = of()
    assert of() == before
    (tmp_path / "shared" / "person.json").write_text(SCHEMA.replace("name", "nick"))
    assert of() != before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def f(:\n", "functions.py` failed: SyntaxError"),
        ("x = 1\nraise ValueError('no')\n", "functions.py:2` failed: ValueError: no"),
        ("import sys\nsys.exit(3)\n", "functions.py:2` failed: SystemExit: 3"),
        ("x = 1\n", "registers no function"),
    ],
)
def test_a_python_file_that_fails_is_told_in_one_line(
    qpdsl: Run, scored: Path, tmp_path: Path, text: str, message: str
) -> None:
    functions = tmp_path / "functions.py"
    functions.write_text(text)
    ran = qpdsl("check", scored, "--python", functions)
    assert (ran.code, ran.out) == (Exit.USAGE, "")
    assert ran.err.startswith("error: ") and message in ran.err.splitlines()[0]
    assert qpdsl("check", scored, "--python", tmp_path / "none.py").err.startswith("error: there is no Python file")


def test_modules_that_a_python_file_imports_count_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    functions, helper = tmp_path / "functions.py", tmp_path / "helper_of_functions.py"
    functions.write_text("import json, helper_of_functions, qpdsl as qp\n\n@qp.scorer\ndef f(text):\n    return 1\n")
    digests = []
    for text in ("a = 1\n", "a = 1\n", "a = 22\n"):
        helper.write_text(text)
        digests.append(read_surroundings(python=[str(functions)]).python)
        del sys.modules["helper_of_functions"]
    assert digests[0] == digests[1] != digests[2]


def test_a_python_file_changes_neither_folder_nor_output(
    qpdsl: Run, scored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    moving = "os.chdir('elsewhere' if os.path.isdir('elsewhere') else '.')\n    sys.stdout = io.StringIO()"
    functions = FUNCTIONS.replace("    return -len", f"    {moving}\n    return -len")
    (tmp_path / "functions.py").write_text(f"import io, os, sys\nos.chdir('elsewhere')\n{functions}")
    write_rows(tmp_path / "in.jsonl", [{"problem": "a"}, {"problem": "b"}])
    monkeypatch.chdir(tmp_path)
    args = ["run", scored.name, "--python", "functions.py", "--input", "in.jsonl", "--no-greedy"]
    stdout = sys.stdout
    printed = qpdsl(*args)
    monkeypatch.setattr(sys, "stdout", stdout)
    assert printed.code == Exit.OK, printed.err
    assert len(printed.records) == 2
    monkeypatch.chdir(tmp_path)
    assert qpdsl(*args, "--output", "out.jsonl").code == Exit.OK
    monkeypatch.setattr(sys, "stdout", stdout)
    assert (tmp_path / "out.jsonl").read_text() == printed.out
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_record_is_json(qpdsl: Run, tmp_path: Path) -> None:
    notes = [
        {"note": "Rosa Haddad is 64 years old. Tags: dancing.", "answer": {"age": 64.0, "tags": [], "name": "x"}},
        {"note": "This is Tom Berg, aged 30. Tags: chess.", "answer": None},
    ]
    path = write_rows(tmp_path / "notes.jsonl", notes)
    ran = qpdsl("run", "constrained_json", "--input", path, "--no-greedy")
    assert ran.code == Exit.OK
    for record in ran.records:
        assert set(record["answer"]) >= {"name", "age", "tags"}  # type: ignore[call-overload]
    assert ran.records[0]["correct"] is False and "correct" not in ran.records[1]
    single = qpdsl("run", "constrained_json", "--set", f"note={notes[0]['note']}", "--no-greedy")
    first, *rest = single.out.splitlines()
    assert json.loads(first.removeprefix("answer")) == ran.records[0]["answer"]
    assert [line.split()[0] for line in rest] == ["tokens"]
    whole = qpdsl("run", "constrained_json", "--set", f"note={notes[0]['note']}", "--no-greedy", "--json")
    assert json.loads(whole.out)["answer"] == ran.records[0]["answer"]
