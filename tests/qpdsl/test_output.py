"""Results: whole files, lines in order, answers compared, digests that notice a change."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpdsl.cli.progress_notes import Rate
from qpdsl.errors import UsageError
from qpdsl.executor.checkpoint.model_digest import model_digest
from qpdsl.executor.checkpoint.model_folder import ModelFolder
from qpdsl.output import OrderedLines, check_writable, write_whole
from qpdsl.planner.values.value import Value
from qpdsl.runs.graders.grader import same_answer
from qpdsl.runs.row_outcome import Outcome
from tests.support.timing import assert_quick, cpu_seconds


@given(st.permutations(range(8)))
def test_lines_come_in_order_and_as_early_as_they_can(order: list[int]) -> None:
    passed: list[str] = []
    lines = OrderedLines(passed.append)
    seen: set[int] = set()
    for number in order:
        lines.put(number, str(number))
        seen.add(number)
        ready = next(count for count in range(9) if count not in seen)
        assert passed == [str(line) for line in range(ready)]


def test_lines_that_wait_for_one_that_never_comes_get_out_in_order() -> None:
    passed: list[str] = []
    lines = OrderedLines(passed.append)
    for number in (0, 5, 2, 11):
        lines.put(number, str(number))
    assert passed == ["0"]
    lines.rest()
    lines.rest()
    assert passed == ["0", "2", "5", "11"]


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    write_whole(path, ["a", "b"])
    assert path.read_text() == "a\nb\n"

    def failing() -> object:
        yield "c"
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_whole(path, failing())  # type: ignore[arg-type]
    assert path.read_text() == "a\nb\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.jsonl"]


def test_a_file_that_is_there_stays_unless_it_may_be_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.jsonl"
    write_whole(path, ["a"], replace=False)
    path.chmod(0o640)
    with pytest.raises(UsageError, match="another file has come there in the meantime"):
        write_whole(path, ["b"], replace=False)
    assert path.read_text() == "a\n"
    write_whole(path, ["c"])
    assert path.read_text() == "c\n" and path.stat().st_mode & 0o777 == 0o640
    path.write_text("")
    write_whole(path, ["d"], replace=False)
    assert path.read_text() == "d\n"

    def no_links(*given: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("qpdsl.output.os.link", no_links)
    with pytest.raises(UsageError, match="another file has come there"):
        write_whole(path, ["e"], replace=False)
    path.unlink()
    write_whole(path, ["f"], replace=False)
    assert path.read_text() == "f\n" and [entry.name for entry in tmp_path.iterdir()] == ["out.jsonl"]


def test_a_link_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "real.jsonl").write_text("old")
    link = tmp_path / "link.jsonl"
    link.symlink_to("real.jsonl")
    write_whole(check_writable(link), ["new"])
    assert link.is_symlink() and (tmp_path / "real.jsonl").read_text() == "new\n"


@pytest.mark.parametrize(
    ("value", "reference", "same"),
    [
        ("12", "12", True),
        (" 12\n", "12", True),
        ("12.0", "12", True),
        (12, "12", True),
        (True, "true", True),
        ("a b", "a  b", False),
        ("12", "13", False),
        ("x", "12", False),
        (None, "none", False),
        ("NaN", "1", False),
        ("-.5e1", "-5", True),
        ("1_000", "1000", False),
        ("٣", "3", False),
        ("Infinity", "inf", False),
    ],
)
def test_answers_are_equal_as_text_or_number(value: Value, reference: str, same: bool) -> None:
    assert same_answer(value, reference) is same


def test_a_record_has_its_keys_in_a_fixed_order() -> None:
    row = Outcome(
        id="1",
        answer=float("inf"),
        score=0.1 + 0.2,
        tokens_in=1,
        tokens_out=2,
        near_ties=0,
        seconds=1.23456,
        correct=False,
        greedy="3",
        greedy_correct=True,
        error="e",
    )
    assert json.dumps(row.record(timing=True)) == (
        '{"id": "1", "answer": "inf", "score": 0.3, "tokens_in": 1, "tokens_out": 2, "correct": false, '
        '"greedy": "3", "greedy_correct": true, "error": "e", "seconds": 1.235}'
    )
    assert "seconds" not in row.record(timing=False)


def digest_of(folder: Path) -> str:
    return model_digest(ModelFolder(folder, {}, {}, {}, {}, ("config.json", "tokenizer.json", "model.safetensors")))


def folder_of(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text('{"a": 1}')
    (folder / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}" + b"w" * 1000)
    (folder / "README.md").write_text("words")
    return folder


def test_the_digest_of_a_model_notices_what_counts(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    first = digest_of(folder)
    (folder / "README.md").write_text("other words")
    assert digest_of(folder) == first
    for name, at in (("config.json", 0), ("tokenizer.json", 6), ("model.safetensors", 700)):
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[:at] + b"?" + data[at + 1 :])
        assert digest_of(folder) != first
        (folder / name).write_bytes(data)
    assert digest_of(folder) == first


def test_the_digest_of_a_large_model_takes_well_under_a_second(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(8 << 30)
    first = digest_of(folder)
    assert_quick(lambda: cpu_seconds(lambda: digest_of(folder)), 1)
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek((8 << 30) - 1)
        file.write(b"x")
    assert digest_of(folder) != first


def test_a_rate_looks_back_a_few_seconds() -> None:
    rate = Rate()
    assert rate.per_second(0.0) is None
    for second in range(20):
        rate.add(float(second), 100)
    assert 90 < (rate.per_second(19.0) or 0) < 130
    assert rate.per_second(60.0) is None


def test_a_rate_of_answers_that_come_as_a_whole() -> None:
    rate = Rate()
    rate.begin(0.0)
    assert rate.per_second(10.0) is None
    for second in (20.0, 40.0, 60.0):
        rate.add(second, 100)
        assert rate.per_second(second) == 5.0
    assert 2 < (rate.per_second(75.0) or 0) < 4
