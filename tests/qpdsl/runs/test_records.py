"""Records as answers: compared as JSON values, shown as JSON."""

from __future__ import annotations

from typing import Any

import pytest

from qpdsl.planner.values.value import plain, shown
from qpdsl.runs.evaluation import CellFigures
from qpdsl.runs.graders.grader import same_answer
from qpdsl.runs.row_outcome import Outcome
from qpdsl.runs.summary import Summary
from qpdsl.runs.usage import kept_counts


@pytest.mark.parametrize(
    ("value", "reference", "same"),
    [
        ({"a": 1, "b": [1, 2]}, {"b": [1, 2], "a": 1.0}, True),
        ({"a": [1, 2]}, {"a": [2, 1]}, False),
        ({"a": True}, {"a": 1}, False),
        ({"a": None}, {}, False),
        ({"a": "1"}, {"a": 1}, False),
        ({"a": {"b": {"c": []}}}, {"a": {"b": {"c": []}}}, True),
        ('{"a": 1}', {"a": 1}, True),
        ("no JSON", {"a": 1}, False),
        ("[" * 100_000, {"a": 1}, False),
        (None, {}, False),
        (3, {}, False),
        ({"a": 1}, '{"a": 1}', True),
        ({"a": 1}, "a", False),
    ],
)
def test_records_are_compared_as_json(value: Any, reference: Any, same: bool) -> None:
    assert same_answer(value, reference) is same


def test_numbers_in_records_are_rounded_as_others() -> None:
    record = {"a": 0.123456789, "b": [1.0, float("inf")], "c": {"d": True}}
    assert plain(record) == {"a": 0.12346, "b": [1.0, "inf"], "c": {"d": True}}
    assert shown(record) == '{"a": 0.12346, "b": [1.0, "inf"], "c": {"d": true}}'


def test_candidates_without_a_score_are_said() -> None:
    fields: dict[str, Any] = {"answer": "3", "score": None, "tokens_in": 1, "tokens_out": 1, "near_ties": 0}
    fields["seconds"] = 1.0
    outcomes = [Outcome(id="1", unscored=2, **fields), Outcome(id="2", **fields), Outcome(id="3", unscored=1, **fields)]
    assert [outcome.record(timing=False).get("unscored") for outcome in outcomes] == [2, None, 1]
    summary = Summary(outcomes, 1.0, 0)
    assert summary.to_json(timing=False)["unscored"] == 3
    assert any(line.split()[:2] == ["unscored", "3"] for line in summary.lines())
    assert not any("unscored" in line for line in Summary(outcomes[1:2], 1.0, 0).lines())


def test_results_that_were_left_before_their_end_are_counted() -> None:
    fields: dict[str, Any] = {"answer": "3", "score": None, "tokens_in": 1, "tokens_out": 1, "near_ties": 0}
    outcomes = [Outcome(id="1", seconds=1.0, **fields)]
    outcomes.append(Outcome(id="2", seconds=1.0, filtered=kept_counts({"unfinished": 1, "rollouts": 3}), **fields))
    assert [outcome.record(timing=False).get("unfinished") for outcome in outcomes] == [None, True]
    summary = Summary(outcomes, 1.0, 0)
    assert summary.to_json(timing=False)["unfinished"] == 1
    assert any(line.startswith("unfinished") and "row `2`" in line for line in summary.lines())
    assert CellFigures.of([dict(enumerate(outcomes))]).unfinished == 1


def test_a_failed_row_is_wrong_at_every_k_and_one_of_unknown_samples_is_left_out() -> None:
    fields: dict[str, Any] = {"answer": "3", "score": None, "tokens_in": 1, "tokens_out": 1, "near_ties": 0}
    fields["seconds"] = 1.0
    right = [{"answer": "3", "correct": True, "score": None}]
    outcomes = [
        Outcome(id="1", correct=True, candidates=right, **fields),
        Outcome(id="2", correct=False, error="broken", **fields),
        Outcome(id="3", correct=True, **fields),
        Outcome(id="4", **fields),
    ]
    summary = Summary(outcomes, 1.0, 0)
    found = summary.to_json(timing=False)
    assert found["at_k"]["pass"]["1"]["accuracy"] == 0.5 and found["not_at_k"] == 1
    assert any(line.startswith("not at k") and " 1 " in line for line in summary.lines())
    assert "at_k" not in Summary(outcomes[1:], 1.0, 0).to_json(timing=False)


def test_points_are_told_where_an_answer_is_right_in_part() -> None:
    fields = {"answer": "1", "score": None, "tokens_in": 1, "tokens_out": 1, "near_ties": 0, "seconds": 1.0}
    part = Outcome(id="1", correct=False, points=0.5, **fields)
    others = [Outcome(id="2", correct=True, points=1.0, **fields), Outcome(id="3", correct=False, **fields)]
    assert part.record(timing=False)["points"] == 0.5 and "points" not in others[0].record(timing=False)
    summary = Summary([part, *others], 1.0, 0)
    assert "points    50.0% on average" in summary.lines() and summary.to_json(timing=False)["points"] == 0.5
    assert "points" not in Summary(others, 1.0, 0).to_json(timing=False)
