"""Input data is checked as a whole: every faulty line is named, by file and line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qpdsl.cli.exits import Exit
from qpdsl.errors import DataError
from qpdsl.grammar import ast
from qpdsl.grammar.source import Span
from qpdsl.planner.logical import Parameter
from qpdsl.rows import read_rows
from tests.cli.conftest import Run

PARAMS = (Parameter("problem", "text", None), Parameter("n", "int", ast.Literal(4, span=Span(0, 0))))


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_rows_have_ids_arguments_and_references(tmp_path: Path) -> None:
    text = (
        '\ufeff{"problem": "a", "n": 2, "extra": [1]}\r\n\n{"problem": "b", "id": 7, "answer": 12}\n{"n": 1, "id": "c"}'
    )
    data = read_rows(write(tmp_path / "d", text), PARAMS, {"problem": "set", "n": 9})
    assert [(row.id, dict(row.arguments), row.reference) for row in data.rows] == [
        ("1", {"problem": "a", "n": 2}, None),
        ("7", {"problem": "b", "n": 9}, "12"),
        ("c", {"problem": "set", "n": 1}, None),
    ]


def test_an_answer_that_is_a_parameter_is_no_reference(tmp_path: Path) -> None:
    params = (Parameter("answer", "text", None),)
    data = read_rows(write(tmp_path / "d", '{"answer": "x"}'), params, {})
    assert data.rows[0].reference is None and data.rows[0].arguments == {"answer": "x"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"problem": "a" "id": 1}', "broken JSON at column 17"),
        ("[1]", "must be a JSON object"),
        ("nonsense", "broken JSON at column 1"),
        ('{"problm": "a"}', "no value for `problem`, which takes text; the fields here are `problm`"),
        ('{"problem": 3}', "`problem` takes text, not 3"),
        ('{"problem": "a", "n": "4"}', "`n` takes a whole number"),
        ('{"problem": NaN}', "`NaN` is no JSON value"),
        ('{"problem": "\\ud800"}', "UTF-8"),
        ('{"problem": "a", "id": true}', "`id` must be text or a whole number"),
        ('{"problem": "a", "answer": []}', "`answer` must be text or a number"),
        ('{"problem": "a", "id": "one"}', "the id `one` stands on line 1 already"),
        ('{"problem": ' + "[" * 100_000, "nested too deep"),
        ('{"n": 1' + "0" * 5000 + ', "problem": "a"}', ""),
    ],
)
def test_a_faulty_line_is_named(qpdsl: Run, tmp_path: Path, line: str, message: str) -> None:
    path = write(tmp_path / "d.jsonl", f'{{"problem": "a", "id": "one"}}\n{line}\n')
    ran = qpdsl("run", "best_of_n", "--input", path)
    assert (ran.code, ran.out) == (Exit.DATA, "")
    assert ran.err.startswith(f"error: {path}:2: ") and message in ran.err and ran.err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b" \n\n", "the file is empty"),
        (b"a\0b", "this is a binary file"),
        (b'{"problem": "\xff"}', ":1: the line is not UTF-8 text (byte 14)"),
    ],
)
def test_a_file_that_holds_no_rows(qpdsl: Run, tmp_path: Path, content: bytes, message: str) -> None:
    ran = qpdsl("run", "greedy", "--input", write(tmp_path / "d.jsonl", content))
    assert ran.code == Exit.DATA and message in ran.err and ran.err.count("\n") == 1


def test_missing_files_and_folders_are_bad_data(qpdsl: Run, tmp_path: Path) -> None:
    assert qpdsl("run", "greedy", "--input", tmp_path / "none").code == Exit.DATA
    assert qpdsl("run", "greedy", "--input", tmp_path).code == Exit.DATA


def test_ten_findings_are_shown_and_the_rest_counted(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        read_rows(write(tmp_path / "d", "{}\n" * 500), PARAMS, {})
    lines = caught.value.message.splitlines()
    assert len(lines) == 11 and lines[-1].endswith(": 490 more lines with errors")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_rows_or_bad_data(tmp_path: Path, data: bytes) -> None:
    path = write(tmp_path / "d", data)
    try:
        assert read_rows(path, PARAMS, {}).rows
    except DataError as error:
        assert str(path) in error.message
