"""The thesis' protocol: only answered problems are throughput, and a split changes no answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.search import thesis
from benchmarks.search.thesis_record import Forwards, line_of
from qpdsl.runs.row_outcome import Outcome

pytestmark = pytest.mark.unshipped


def outcome(id: str, answer: object = None, **more: object) -> Outcome:
    drawn: dict[str, object] = {"score": None, "tokens_in": 10, "tokens_out": 100, "near_ties": 0, "seconds": 1.0}
    return Outcome(id=id, answer=answer, **drawn, **more)  # type: ignore[arg-type]


def test_a_problem_that_failed_is_no_throughput() -> None:
    outcomes = [
        outcome("right", "7", correct=True),
        outcome("wrong", "8", correct=False),
        outcome("failed", error="the memory does not hold it"),
        outcome("no answer", unanswered="nothing was found", correct=False),
    ]
    line = line_of("search", 0.3, {}, outcomes, 2.0, 4.0, {})
    assert (line.right, line.answered, line.failed, line.total) == (1, 2, 1, 4)
    assert (line.problems_per_second, line.tokens_per_second, line.tokens_per_cpu_second) == (1.0, 100.0, 50.0)


def test_nothing_answered_is_no_throughput_at_all() -> None:
    line = line_of("search", 0.3, {}, [outcome("failed", error="no memory")], 2.0, 4.0, {})
    assert (line.problems_per_second, line.tokens_per_second, line.right) == (0.0, 0.0, 0)


def test_the_hit_rate_is_of_all_prompt_tokens() -> None:
    assert Forwards(0, 0, 0, 0.0, 9, 0, 0, 0, 0, 0).hit_rate == 0.0
    assert Forwards(2, 30, 10, 2.0, 9, 3, 90, 0, 0, 0).hit_rate == 0.75


def test_a_split_is_between_the_models_and_changes_no_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fixed = "--problems 3 --programs beam_search --shares 0.02 0.06 0.3 --memory 3MiB --batch-problems 0"
    folders = ["--output", str(tmp_path), "--traces", str(tmp_path / "traces")]
    monkeypatch.setattr("sys.argv", ["thesis", *fixed.split(), *folders])
    thesis.main()
    record = json.loads((tmp_path / "thesis.json").read_text())
    assert record["spread"] == dict.fromkeys("123", 1)
    assert [entry["share"] for entry in record["unfit"]] == [0.02]
    shared, small, large = record["lines"]
    # The arenas are two: what the one model is given the other has not, and neither holds more than its own.
    for line in (small, large):
        for name, own in line["forwards"].items():
            assert own["peak_pages"] <= own["pages"] <= line["kv_bytes"][name] // record["page_bytes"][name]
    assert small["failed"] and small["answered"] + small["failed"] <= 3
    assert small["problems_per_second"] == pytest.approx(small["answered"] / small["seconds"])
    assert shared["failed"] == large["failed"] == 0 and large["same"] == 3
    page = (tmp_path / "thesis.md").read_text()
    assert "`beam_search` at 0.02 does not run" in page and (tmp_path / "thesis_split.svg").exists()
    assert page in capsys.readouterr().out
