"""Input data is checked as a whole: every faulty line is named, by file and line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpdsl.cli.exits import Exit
from qpdsl.errors import DataError
from qpdsl.runs.data.rows import read_rows
from tests.qpdsl.runs.data.plans import PLAN, planned
from tests.support.cli import Run


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_rows_have_ids_arguments_and_references(tmp_path: Path) -> None:
    text = (
        '\ufeff{"problem": "a", "n": 2, "extra": [1]}\r\n\n{"problem": "b", "id": 7, "answer": 12}\n{"n": 1, "id": "c"}'
    )
    data = read_rows(write(tmp_path / "d", text), PLAN, {"problem": "set", "n": 9})
    assert [(row.id, dict(row.arguments), row.reference) for row in data.rows] == [
        ("1", {"problem": "a", "n": 2}, None),
        ("7", {"problem": "b", "n": 9}, "12"),
        ("c", {"problem": "set", "n": 1}, None),
    ]


def test_an_answer_that_is_a_parameter_is_no_reference(tmp_path: Path) -> None:
    data = read_rows(write(tmp_path / "d", '{"answer": "x"}'), planned("answer: text, n: int = 4"), {})
    assert data.rows[0].reference is None and data.rows[0].arguments == {"answer": "x", "n": 4}


def test_a_dash_means_standard_input(qpdsl: Run) -> None:
    reading, writing = os.pipe()
    saved = os.dup(0)
    os.dup2(reading, 0)
    try:
        os.write(writing, b'{"problem": "a", "id": "one"}\n{"problem": 3}\n')
        os.close(writing)
        ran = qpdsl("run", "best_of_n", "--input", "-")
    finally:
        os.dup2(saved, 0)
        for handle in (saved, reading):
            os.close(handle)
    assert (ran.code, ran.err) == (Exit.DATA, "error: standard input:2: `problem` takes text, not 3\n")


def test_every_row_out_of_range_is_named(qpdsl: Run, tmp_path: Path) -> None:
    text = '{"problem": "a", "n": 2}\n{"problem": "a", "n": 0}\n{"problem": 1}\n{"problem": "a", "n": 99999999}\n'
    path = write(tmp_path / "d.jsonl", text)
    ran = qpdsl("run", "best_of_n", "--input", path)
    assert (ran.code, ran.out) == (Exit.DATA, "")
    assert ran.err.splitlines() == [
        f"error: {path}:2: `n` takes a whole number of at least 1 and at most 65536, not 0",
        f"error: {path}:3: `problem` takes text, not 1",
        f"error: {path}:4: `n` takes a whole number of at least 1 and at most 65536, not 99999999",
    ]


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
        ('{"problem": "a", "answer": []}', "`answer` is an empty list"),
        ('{"problem": "a", "answer": [["1"]]}', "`answer` must be text, a number or an object, or a list of these"),
        ('{"problem": "a", "id": "one"}', "the id `one` stands on line 1 already"),
        ('{"problem": ' + "[" * 100_000, "nested too deep"),
        ('{"n": 1' + "0" * 5000 + ', "problem": "a"}', "a number of 5,001 digits is too long"),
        ('{"problem": "a", "id": -' + "9" * 4400 + "}", "a number of 4,400 digits is too long"),
        ('{"problem": "a", "answer": ' + "9" * 4400 + "}", "a number of 4,400 digits is too long"),
        ('{"problem": "a", "answer": 1e400}', "`answer` is too large a number"),
        ('{"problem": "a", "id": ""}', "`id` is empty"),
        ('{"problem": "a", "problem": "b"}', "the field `problem` stands twice in one object"),
        ('{"problem": "a", "answer": {"x": 1, "x": 2}}', "the field `x` stands twice in one object"),
        ('\ufeff{"problem": "a"}', "begins with a byte-order mark"),
        ('{"problem": "a", "n": 9223372036854775808}', "`n` takes a whole number of up to 64 bits"),
    ],
)
def test_a_faulty_line_is_named(qpdsl: Run, tmp_path: Path, line: str, message: str) -> None:
    path = write(tmp_path / "d.jsonl", f'{{"problem": "a", "id": "one"}}\n{line}\n')
    ran = qpdsl("run", "best_of_n", "--input", path)
    assert (ran.code, ran.out) == (Exit.DATA, "")
    assert ran.err.startswith(f"error: {path}:2: ") and message in ran.err and ran.err.count("error: ") == 1


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
    assert ran.code == Exit.DATA and message in ran.err and ran.err.count("error:") == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{\n  "problem": "a"\n}\n{\n  "problem": "b"\n}\n', "go over several lines each"),
        ('{"problem": "a"}'.encode("utf-16"), "this is UTF-16 text"),
        (b"\x1f\x8b\x08text", "broken gzip file"),
        (b"PAR1text", "broken Parquet file"),
        (b"PK\x03\x04text", "this is a zip file"),
    ],
)
def test_data_of_another_kind_is_named_once(tmp_path: Path, content: str | bytes, message: str) -> None:
    path = write(tmp_path / "d", content)
    with pytest.raises(DataError) as caught:
        read_rows(path, PLAN, {})
    assert caught.value.message.startswith(f"{path}: ") and message in caught.value.message
    assert caught.value.message.count("\n") == 0


def test_what_is_not_used_is_said(tmp_path: Path) -> None:
    text = '{"problem": "a", "nn": 3, "level": 1, "Answer": 2}\n{"problem": "b", "nn": 3, "level": 2}\n'
    path = write(tmp_path / "d", text)
    assert read_rows(path, PLAN, {"problem": "x", "n": 2}).notes == (
        f"warning: {path}:1: `nn` is no parameter of `p`; did you mean `n`? (and 1 line more)",
        f"warning: {path}:1: `Answer` is no parameter of `p`; did you mean `answer`?",
        "note: `level` is not used",
        "warning: `--set problem=…` has no effect, since every row of the input sets `problem`",
    )
    own = '{"problem": "a", "nr": 1, "gold": 2, "difficulty": 3}\n'
    assert read_rows(write(path, own), PLAN, {"n": 2}).notes == (
        "note: `nr` looks like an id: `--id nr` takes it for that",
        "note: `gold` looks like the right answer: `--map answer=gold` takes it for that",
        "note: `difficulty` is not used",
    )
    used = '{"problem": "a", "n": 3, "id": "x", "answer": 2}\n{"problem": "b"}\n'
    assert read_rows(write(path, used), PLAN, {"n": 2}).notes == ()


def test_a_run_says_what_it_does_not_use(qpdsl: Run, tmp_path: Path) -> None:
    path = write(tmp_path / "d.jsonl", '{"problem": "Mia has 3 boxes.", "nn": 3}\n')
    for command in (("run", "--no-greedy"), ("explain", "--analyze")):
        ran = qpdsl(*command, "self_consistency", "--input", path, "--model", "llm=zoo/counting-mini", "--set", "n=1")
        assert f"warning: {path}:1: `nn` is no parameter of `self_consistency`; did you mean `n`?\n" in ran.err


def test_missing_files_and_folders_are_bad_data(qpdsl: Run, tmp_path: Path) -> None:
    assert qpdsl("run", "greedy", "--input", tmp_path / "none").code == Exit.DATA
    assert qpdsl("run", "greedy", "--input", tmp_path).code == Exit.DATA


def test_findings_are_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "d", "{}\n" * 500)
    with pytest.raises(DataError) as caught:
        read_rows(path, PLAN, {})
    assert caught.value.message == f"{path}:1: no value for `problem`, which takes text (and 499 lines more)"
    write(path, "".join(f'{{"problem": {number}}}\n' for number in range(500)))
    with pytest.raises(DataError) as caught:
        read_rows(path, PLAN, {})
    lines = caught.value.message.splitlines()
    assert len(lines) == 11 and lines[-1].endswith(": 490 more lines with errors")


@given(st.binary(max_size=200))
def test_any_bytes_are_rows_or_bad_data(tmp_path: Path, data: bytes) -> None:
    path = write(tmp_path / "d", data)
    try:
        assert read_rows(path, PLAN, {}).rows
    except DataError as error:
        assert str(path) in error.message
