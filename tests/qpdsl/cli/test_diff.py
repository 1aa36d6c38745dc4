"""`qpdsl diff`, and `qpdsl report` of saved runs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from qpdsl.cli.exits import Exit
from qpdsl.runs.graders.grader import EqualAnswer
from qpdsl.runs.store.recording import Recording
from qpdsl.runs.store.run_folder import RunFolder
from tests.support.cli import Run
from tests.support.saved_runs import inputs, outcome, record


def keep(folder: RunFolder, verdicts: Sequence[bool], rows: int | None = None, **values: Any) -> str:
    """Keeps a run that answers as `verdicts` say, over an input of so many rows, and returns its id."""
    data = inputs(rows or len(verdicts))
    with Recording.begin(folder, record(rows=len(data.rows), **values), data, EqualAnswer()) as kept:
        for number, right in enumerate(verdicts):
            kept.add(number, outcome(number, answer=str(number) if right else "wrong", correct=right))
        kept.end("finished")
        return kept.id


@pytest.fixture
def ids(runs: RunFolder) -> list[str]:
    """A run, and one that has lost 12 of its 30 right answers."""
    verdicts = [number % 4 > 0 for number in range(40)]
    worse = [right and number > 15 for number, right in enumerate(verdicts)]
    return [keep(runs, verdicts), keep(runs, worse, parameters={"n": 8}, started=1.76e9)]


def test_a_regression_is_told_and_fails_where_it_is_asked_to(qpdsl: Run, ids: list[str]) -> None:
    ran = qpdsl("diff", *ids, "--rows", "1")
    assert ran.code == Exit.OK and ran.err == ""
    lines = ran.out.splitlines()
    assert lines[-1] == "B is worse: -30.0 points (-43.0 to -14.1), p < 0.001"
    assert "  n  4 → 8" in lines and "40 problems in common, the same random numbers" in lines
    assert "flipped problems: 0 better in B, 12 better in A; 0 more answers differ" in lines
    assert lines[-3].split() == ["row", "1", "1", "1", "wrong"]
    assert qpdsl("diff", *ids, "--fail-if", "worse").code == Exit.ROW_FAILED
    assert qpdsl("diff", *reversed(ids), "--fail-if", "worse").code == Exit.OK


def test_programs_get_json(qpdsl: Run, ids: list[str]) -> None:
    ran = qpdsl("diff", "last-1", "last", "--format", "json", "--by", "level", "--rows", "2")
    found = json.loads(ran.out)
    assert found["first"]["runs"] == ids[:1] and found["verdict"]["kind"] == "worse"
    assert len(found["lost"]) == 2 and found["flips"] == {"gained": 0, "lost": 12, "other_answers": 0}
    assert [group["value"] for group in found["by"]["groups"]] == [0, 1, 2]


def test_what_to_know_first_is_noted(qpdsl: Run, runs: RunFolder, ids: list[str]) -> None:
    part = keep(runs, [True] * 10, rows=40, grader="number 1", machine="another", started=1.77e9)
    assert qpdsl("diff", ids[0], part).err.splitlines() == [
        f"note: run `{part}` is finished: 10 of 40 rows are there",
        "warning: answers were graded by `equal 1` and by `number 1`; part of the difference may be theirs",
        "note: the runs were on different machines, so their seconds say little",
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["last", "nosuch"], "there is no saved run `nosuch`"),
        (["last", "last,last-1"], "have the same seed"),
        (["last", "last", "--by", "subject"], "no graded row has a short field `subject`"),
    ],
)
def test_what_cannot_be_compared_is_refused(qpdsl: Run, ids: list[str], words: list[str], message: str) -> None:
    ran = qpdsl("diff", *words)
    assert ran.code == Exit.USAGE and message in ran.err and ran.out == ""


def test_kept_runs_become_a_page(qpdsl: Run, ids: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert qpdsl("report", *ids).out == "comparison.html\n"
    assert qpdsl("report", ids[0]).out == f"{ids[0]}.html\n"
    assert "B is worse" in Path("comparison.html").read_text("utf-8")
    again = qpdsl("report", *ids)
    assert again.code == Exit.USAGE and "--overwrite" in again.err
    assert qpdsl("report", *ids, "--overwrite").code == Exit.OK


def test_a_page_never_takes_the_place_of_a_run(qpdsl: Run, runs: RunFolder, ids: list[str]) -> None:
    before = runs.file(ids[0]).read_bytes()
    for name in ids[0], str(runs.file(ids[0])):
        ran = qpdsl("report", name, "--overwrite", "--output", str(runs.file(ids[0])))
        assert ran.code == Exit.USAGE and f"run `{ids[0]}`" in ran.err
    assert runs.file(ids[0]).read_bytes() == before
    assert "made of a trace" in qpdsl("report", *ids, "--format", "chrome").err


def test_runs_with_commas_are_the_seeds_of_one_set_up(
    qpdsl: Run, runs: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sides = []
    for width, lost in ((4, 0), (8, 12)):
        own = [
            keep(
                runs,
                [number % 4 > 0 and number >= lost + seed for number in range(40)],
                seed=seed,
                parameters={"n": width},
                fingerprint={"seed": str(seed), "arguments": str(width)},
            )
            for seed in range(2)
        ]
        sides.append(",".join(own))
    ran = qpdsl("diff", *sides, "--rows", "1")
    assert ran.code == Exit.OK and ran.out.splitlines()[-1].startswith("B is worse: -22.5 points")
    assert ", seeds 0, 1, 40 of 40 rows, 40 of 40 rows" in ran.out
    assert qpdsl("report", *sides, "--output", "page.html").out == "page.html\n"
