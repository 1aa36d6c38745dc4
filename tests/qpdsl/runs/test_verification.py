"""What of a saved row is held against what came of it again, and which rows are chosen for that."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpdsl.runs.store.run_record import RowRecord
from qpdsl.runs.verification import saved_difference, spread_rows
from tests.support.saved_runs import outcome


def row(**values: Any) -> RowRecord:
    return RowRecord(number=0, key="key", outcome=outcome(0, **values))


@pytest.mark.parametrize(
    ("saved", "again", "where", "character"),
    [
        ({"answer": "42 boxes"}, {"answer": "43 boxes"}, "answer", 1),
        ({"score": 0.25}, {"score": 0.250001}, "score", None),
        ({"rows": [{"text": "so"}, {"text": "abc"}]}, {"rows": [{"text": "so"}, {"text": "abd"}]}, "rows[1].text", 2),
        ({"rows": [{"n": 1}]}, {"rows": [{"n": 1.0}]}, "rows[0].n", None),
        ({"rows": [{}]}, {"rows": []}, "rows: how many", None),
        ({"tokens_out": 3}, {"tokens_out": 4}, "tokens_out", None),
    ],
)
def test_the_first_difference_is_named(saved: Any, again: Any, where: str, character: int | None) -> None:
    found = saved_difference(row(**saved), outcome(0, **again), counts=True)
    assert found is not None and (found.where, found.character) == (where, character)


def test_seconds_grades_and_counts_of_samples_that_were_given_up_are_none() -> None:
    saved = row(seconds=1.0, correct=True, tokens_out=3, candidates=[{"answer": 1, "correct": True}])
    again = outcome(0, seconds=2.0, correct=False, tokens_out=4, candidates=[{"answer": 1, "correct": None}])
    assert saved_difference(saved, again, counts=False) is None


@given(st.integers(1, 60), st.integers(1, 80), st.integers())
def test_rows_are_spread_over_a_run(rows: int, count: int, seed: int) -> None:
    chosen = spread_rows(range(rows), count, seed)
    assert len(chosen) == min(rows, count) and chosen == sorted(set(chosen))
    assert chosen == spread_rows(range(rows), count, seed)
    if len(chosen) > 1:
        most = 2 * -(-rows // len(chosen))
        assert all(later - earlier < most for earlier, later in pairwise(chosen))
