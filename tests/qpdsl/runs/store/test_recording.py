"""A run that goes on: which rows are taken over, which run again, which are graded anew."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from qpdsl.errors import UsageError
from qpdsl.runs.data.input_row import InputData, InputRow
from qpdsl.runs.graders.grader import EqualAnswer, Grade
from qpdsl.runs.store.continuing import newest, reuse, unfinished, writer_of
from qpdsl.runs.store.recording import Recording
from qpdsl.runs.store.run_file import RunFile
from qpdsl.runs.store.run_folder import RunFolder
from tests.support.saved_runs import damage_row, inputs, outcome, record, recorded


class Wrong:
    """A grader that lets nothing through."""

    name, version = "wrong", "1"

    def applies(self, row: InputRow) -> bool:
        return True

    async def grade(self, answer: Any, row: InputRow) -> Grade:
        return Grade(False, 0.0)


def resumed(runs: RunFolder, data: InputData, grades: Any = None, **values: object) -> Recording:
    run = unfinished(runs, record(**values), data)
    return asyncio.run(Recording.resume(run, record(**values), data, grades or EqualAnswer()))


def test_rows_that_are_left_come_in_the_order_of_the_input(runs: RunFolder) -> None:
    recorded(runs, 4)
    with resumed(runs, inputs(10)) as kept:
        assert [row.number for row in kept.left()] == [4, 5, 6, 7, 8, 9]
        assert kept.outcomes[2] == outcome(2, correct=True)
        kept.add(9, outcome(9))
        assert [row.number for row in kept.left()] == [4, 5, 6, 7, 8]
    with resumed(runs, inputs(10)) as kept:
        assert sorted(kept.outcomes) == [0, 1, 2, 3, 9]


def test_changed_damaged_and_lost_rows_are_dropped_and_said(runs: RunFolder) -> None:
    id = recorded(runs, 6)
    damage_row(runs.file(id), 0)
    rows = list(inputs(10).rows)
    rows[1] = replace(rows[1], arguments={"problem": "another"})
    rows[2] = replace(rows[2], id="another")
    data = InputData(tuple(rows[:5]), "other", name="in.jsonl")
    with resumed(runs, data) as kept:
        assert sorted(kept.outcomes) == [3, 4]
        assert kept.continued.notes(kept.id, 5) == [
            f"going on with run `{id}`: 2 of 5 rows are there",
            f"warning: damaged in run `{id}`, and run again: row `1`",
            "note: rows that have other arguments now run again: `row 1`, `row 2`",
            "note: rows that are not in the input any more are dropped: `row 5`",
        ]
        kept.add(0, outcome(0))
        assert kept.run.info().totals.done == 3


def test_another_grader_grades_what_is_there(runs: RunFolder) -> None:
    recorded(runs, 4)
    with resumed(runs, inputs(10), Wrong(), grader="wrong 1") as kept:
        assert kept.continued.regraded == 4
        assert all(outcome.correct is False for outcome in kept.outcomes.values())
        assert (kept.run.info().totals.correct, kept.run.info().totals.graded) == (0, 4)
        assert kept.run.record.grader == "wrong 1"
    with resumed(runs, inputs(10), Wrong()) as kept:
        assert kept.continued.regraded == 0


def test_a_run_in_which_nothing_finished_leaves_nothing(runs: RunFolder) -> None:
    recorded(runs, 0)
    assert runs.ids() == []


def test_the_newest_unfinished_run_is_gone_on_with(runs: RunFolder) -> None:
    recorded(runs, 3, started=1.0)
    wanted = recorded(runs, 1, started=2.0)
    recorded(runs, 2, started=3.0, end=True)
    recorded(runs, 2, started=4.0, fingerprint={"seed": "1"})
    recorded(runs, 2, started=5.0, sweep="grid")
    with unfinished(runs, record(), inputs(10)) as run:
        assert run.id == wanted
        # While it is written, the one before it is the newest.
        with unfinished(runs, record(), inputs(10)) as other:
            assert other.id == runs.ids()[0]
            with pytest.raises(UsageError, match="another process is writing run"):
                unfinished(runs, record(), inputs(10))
    found = newest(runs, record())
    assert found is not None and found.status == "finished"
    swept = newest(runs, record(sweep="grid"))
    assert swept is not None and swept.id == runs.ids()[-1]


def test_a_run_that_ended_before_its_first_row_goes_on_after_those_with_rows(runs: RunFolder) -> None:
    for sweep in (None, "grid"):
        with Recording.begin(runs, record(started=2.0, sweep=sweep), inputs(10), EqualAnswer()) as kept:
            kept.end("interrupted")
    (begun,) = runs.ids()
    with unfinished(runs, record(), inputs(10)) as run:
        assert run.id == begun
    others = InputData((InputRow("x", {"problem": "x"}),), "other", name="other.jsonl")
    with pytest.raises(UsageError, match="no row of the unfinished run"):
        unfinished(runs, record(), others)
    rows = recorded(runs, 3, started=1.0)
    with unfinished(runs, record(), inputs(10)) as run:
        assert run.id == rows


def test_what_the_nearest_run_differs_in_is_said(runs: RunFolder) -> None:
    recorded(runs, 3, fingerprint={"version": "2", "seed": "3"}, started=1.0)
    near = recorded(runs, 4, fingerprint={"version": "1", "seed": "3"}, started=2.0)
    with pytest.raises(UsageError) as caught:
        unfinished(runs, record(), inputs(10))
    assert caught.value.message == (
        f"cannot resume the run `{near}` (4 of 10 rows); changed since it began: the seed (was 3, is 0)"
    )


def test_a_run_of_other_rows_is_not_the_one(runs: RunFolder) -> None:
    recorded(runs, 3)
    others = InputData((InputRow("x", {"problem": "x"}),), "other", name="other.jsonl")
    with pytest.raises(UsageError, match=r"no row of the unfinished run .* is in the input `other.jsonl`"):
        unfinished(runs, record(), others)
    with RunFile.reading(runs.file(runs.ids()[0])) as run:
        assert run.info().totals.done == 3


def test_rows_are_reused_by_their_arguments(runs: RunFolder) -> None:
    first = recorded(runs, 3, started=1.0)
    second = recorded(runs, 2, started=2.0, end=True)
    recorded(runs, 5, started=3.0, fingerprint={"seed": "1"})
    renamed = tuple(replace(row, id=f"new {number}") for number, row in enumerate(inputs(10).rows))
    data = InputData(renamed[::-1], "other")
    with Recording.begin(runs, record(), data, EqualAnswer()) as kept:
        taken = asyncio.run(reuse(kept, runs))
        assert taken == {second: 2, first: 1}
        assert {number: (one.id, one.answer) for number, one in kept.outcomes.items()} == {
            9: ("new 0", "0"), 8: ("new 1", "1"), 7: ("new 2", "2"),
        }  # fmt: skip
        assert kept.run.info().totals.reused == 3
    # What was taken over twice still names the run that computed it.
    with Recording.begin(runs, record(started=9.0), inputs(10), Wrong()) as kept:
        asyncio.run(reuse(kept, runs))
        assert {row.reused for row in kept.run.rows()} == {first, second}
        assert all(outcome.correct is False for outcome in kept.outcomes.values())


def test_a_row_that_failed_is_not_reused(runs: RunFolder) -> None:
    with Recording.begin(runs, record(), inputs(10), EqualAnswer()) as kept:
        kept.add(0, outcome(0, error="timed out"))
        kept.add(1, outcome(1))
    with Recording.begin(runs, record(), inputs(10), EqualAnswer()) as kept:
        asyncio.run(reuse(kept, runs))
        assert sorted(kept.outcomes) == [1]


def test_who_writes_an_output_is_known_while_it_does(runs: RunFolder, tmp_path: Any) -> None:
    output = tmp_path / "out.jsonl"
    with Recording.begin(runs, record(output=str(output)), inputs(10), EqualAnswer()) as kept:
        assert writer_of(runs, output) == kept.id and writer_of(runs, output, but=kept.id) is None
        assert writer_of(runs, tmp_path / "other.jsonl") is None
        kept.add(0, outcome(0))
    assert writer_of(runs, output) is None
