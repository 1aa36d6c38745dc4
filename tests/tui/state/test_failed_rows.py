"""Rows that fail, or come to no answer, as the header counts them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from qpdsl.cli.runs.run_events import emit_row
from qpdsl.executor.events.codec import decode, encode
from qpdsl.executor.events.events import InstanceDone, RowDone
from qpdsl.executor.events.stream import EventStream
from qpdsl.runs.data.input_row import InputRow
from qpdsl.runs.row_outcome import Outcome
from qpdsl.runs.statistics import share_right
from qpdsl.runs.store.run_record import RowRecord, Totals
from qpdsl.runs.summary import Summary
from qpdsl.tui.state.decisions import spending
from qpdsl.tui.state.run_state import RunState
from tests.support.tui.screen import dashboard, press, settle
from tests.support.tui.traces import recorded, write


def shown(folder: Path, *keys: str, **how: object) -> str:
    """The screen of the recorded run, in which all rows are as given, at its end."""
    rows = [replace(event, **how) if isinstance(event, RowDone) else event for event in recorded()]  # type: ignore[type-var]
    path = write(folder / "rows.jsonl", [event for event in rows if not isinstance(event, InstanceDone)])

    async def main() -> str:
        async with dashboard(path, (120, 30)) as pilot:
            return await press(pilot, *keys) if keys else await settle(pilot)

    return asyncio.run(main())


def test_a_run_whose_rows_all_failed_is_not_done(tmp_path: Path) -> None:
    head = shown(tmp_path, error="HTTP 500", correct=False).splitlines()
    assert "✖ all failed" in head[0] and "✔" not in head[0] and "6 failed" in head[0] and "0% ±39 right" in head[1]


@pytest.mark.parametrize("screen", ["3", "2"])
def test_why_a_row_has_no_answer_is_told(tmp_path: Path, screen: str) -> None:
    why = "`extract` found nothing in 4 texts"
    whole = shown(tmp_path, screen, unanswered=why, error=None, correct=False, answer="")
    assert "✔ done" in whole and "6 without an answer" in whole and "0% ±39 right" in whole and why in whole


def test_failures_that_differ_in_numbers_and_quotes_are_one_group() -> None:
    state = RunState()
    texts = [r'"so \" it ends"', '"7 of it"', '"cut of']
    whys = [f"found nothing in {at} texts; the first ends {text}" for at, text in enumerate(texts)]
    for at, why in enumerate([*whys, "HTTP 500"]):
        figures = {"score": None, "prompt_tokens": 1, "sampled_tokens": 1, "seconds": 1.0}
        state.add(RowDone(at=1.0, row=str(at), answer=None, error=why, **figures))  # type: ignore[arg-type]
    assert [len(group.rows) for group in state.failures] == [3, 1]


@pytest.mark.parametrize("left", [0, 50])
def test_tokens_of_an_operator_that_failed_are_told_as_its_row_ends(left: int) -> None:
    state = RunState()
    for event in recorded():
        failed = isinstance(event, RowDone) and event.error is not None
        state.add(replace(event, prompt_tokens=event.prompt_tokens + left) if failed else event)  # type: ignore[attr-defined]
    told = {own.name: own.tokens for group in spending(state)[:2] for own in group}
    assert told["in all"] == sum(row.tokens for row in state.rows.values())
    assert told.get("in operators that failed", 0) == left


def test_the_header_the_summary_and_a_saved_run_count_alike() -> None:
    def outcome(**how: object) -> Outcome:
        figures = {"score": None, "tokens_in": 3, "tokens_out": 2, "near_ties": 0, "seconds": 0.1}
        return Outcome(id="a", answer="7", **figures, **how)  # type: ignore[arg-type]

    outcomes = [
        outcome(correct=True),
        outcome(correct=False),
        outcome(correct=False, error="HTTP 500"),
        outcome(correct=False, unanswered="nothing was found"),
        outcome(error="timed out"),
        outcome(unanswered="nothing was found"),
    ]
    state, stream, totals = RunState(), EventStream(), Totals()
    stream.subscribe(lambda event: state.add(decode(encode(event, stream.zero))))
    for outcome_ in outcomes:
        emit_row(stream, InputRow("a", {}), outcome_)
        totals = totals.with_row(RowRecord(number=0, key="", outcome=outcome_))
    summary = Summary(outcomes, 1.0, 2).to_json(timing=False)
    header = (state.done, state.failed, state.unanswered, state.right, state.judged)
    assert header == (6, 3, 1, 1, 4)
    assert header == (totals.done, totals.failed, totals.unanswered, totals.correct, totals.graded)
    told = (summary["rows"], summary["failed"], summary["unanswered"], summary["correct"], summary["compared"])
    assert header == told
    assert state.right / state.judged == share_right([outcome.correct for outcome in outcomes[:4]])
