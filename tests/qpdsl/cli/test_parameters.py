"""Values of parameters on the command line: lists, files, models, and rows of data with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qpdsl.cli.exits import Exit
from tests.support.cli import Run, write_rows

PROGRAM = """
program p(
  problem: text,
  shots: [text] = [],
  style: choice("short", "long") = "short",
  note: text?,
  llm: model,
) -> {shots: [text], style: text, note: text?} {
  chat user="{problem} {shots} {note}"
  generate llm max_tokens=3
  return {shots: shots, style: style, note: note}
}
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "p.qp"
    path.write_text(PROGRAM)
    return path


def test_lists_files_and_models(qpdsl: Run, program: Path, tmp_path: Path) -> None:
    (tmp_path / "shots.jsonl").write_text('"one"\n"two"\n')
    base = ("run", program, "--set", "problem=x", "--no-greedy", "--json")
    by_set = qpdsl(*base, "--set", 'shots=["a"]', "--set", "llm=zoo/counting")
    assert json.loads(by_set.out)["answer"] == {"shots": ["a"], "style": "short"}
    by_option = qpdsl(*base, "--set", 'shots=["a"]', "--model", "llm=zoo/counting")
    assert by_option.out == by_set.out
    file = f"shots=@{tmp_path / 'shots.jsonl'}"
    more = qpdsl(*base, "--set", file, "--set", "note=hi", "--set", "style=long", "--set", "llm=zoo/counting-mini")
    assert json.loads(more.out)["answer"] == {"shots": ["one", "two"], "style": "long", "note": "hi"}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ((), "no model for `llm`, which is a parameter of `p`"),
        (("--set", "llm=zoo/counting-prm"), "is a verifier"),
        (("--set", "llm=zoo/counting", "--model", "llm=zoo/counting"), "the model `llm` is given twice"),
        (("--model", "lm=zoo/counting", "--set", "llm=zoo/counting"), "did you mean `llm`?"),
        (("--set", "llm=zoo/counting", "--set", "samples=2"), "the program says it, as `generate MODEL n=…`"),
        (("--set", "llm=zoo/counting", "--set", "style=wide"), "`style` takes `choice("),
        (("--set", "llm=zoo/counting", "--set", "shots=a"), "written as JSON"),
    ],
)
def test_what_is_refused(qpdsl: Run, program: Path, options: tuple[str, ...], why: str) -> None:
    ran = qpdsl("run", program, "--set", "problem=x", *options)
    assert ran.code == Exit.USAGE if why != "is a verifier" else ran.code != Exit.OK
    assert why in ran.err


def test_rows_of_data_and_checks_without_a_model(qpdsl: Run, program: Path, tmp_path: Path) -> None:
    assert qpdsl("check", program).code == Exit.OK
    rows = [{"problem": "x", "shots": ["a", "b"]}, {"problem": "y", "style": "long", "note": None}]
    data = write_rows(tmp_path / "data.jsonl", rows)
    ran = qpdsl("run", program, "--input", data, "--model", "llm=zoo/counting", "--no-greedy")
    assert [record["answer"] for record in ran.records] == [
        {"shots": ["a", "b"], "style": "short"},
        {"shots": [], "style": "long"},
    ]
    data = write_rows(tmp_path / "bad.jsonl", [{"problem": "x", "shots": "a"}])
    ran = qpdsl("run", program, "--input", data, "--model", "llm=zoo/counting")
    assert "`shots` takes a value of the type `[text]`" in ran.err


def test_a_file_with_a_value_is_not_overwritten(qpdsl: Run, program: Path, tmp_path: Path) -> None:
    shots = tmp_path / "shots.json"
    shots.write_text('["a"]')
    data = write_rows(tmp_path / "data.jsonl", [{"problem": "x"}])
    options = ("--set", f"shots=@{shots}", "--model", "llm=zoo/counting", "--output", shots, "--overwrite")
    assert qpdsl("run", program, "--input", data, *options).code != Exit.OK
    assert shots.read_text() == '["a"]'
