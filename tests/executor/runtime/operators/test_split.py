"""`split`: copies of rows, a fixed number of each or a budget shared out by value."""

from __future__ import annotations

import asyncio
import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpdsl.executor.runtime.operators.split import shares, split
from qpdsl.planner.plan import ops
from tests.support.executor.programs import HEADER, compiled, run_all, texts
from tests.support.executor.rows import NOWHERE, expr, instance, name, rows

SCORES = st.lists(st.one_of(st.none(), st.floats(-5, 5)), min_size=1, max_size=12)


def test_split_copies_rows_in_groups_of_all_rows() -> None:
    op = ops.Split(stage=0, span=NOWHERE, count=expr("3"))
    copies = asyncio.run(split(op, rows({"s": 1}, {"s": 5}), instance()))
    assert [(row.path, row.columns["s"], row.columns["group"]) for row in copies] == [
        *[((0, copy), 1, copy) for copy in range(3)],
        *[((1, copy), 5, 3 + copy) for copy in range(3)],
    ]


def test_split_by_shares_rows_out_in_each_group_and_leaves_the_groups_as_they_are() -> None:
    candidates = rows(
        {"group": 1, "s": 1.0}, {"group": 0, "s": 1.0}, {"group": 1, "s": 0.0}, {"group": 0, "s": None}, {"group": 1}
    )
    op = ops.Split(stage=0, span=NOWHERE, count=expr("4"), by=expr("s"), temperature=expr("0.1"), per=name("group"))
    copies = asyncio.run(split(op, candidates, instance()))
    assert [(*row.path, row.columns["group"]) for row in copies] == [
        *[(0, copy, 1) for copy in range(4)],
        *[(1, copy, 0) for copy in range(4)],
    ]


@given(SCORES, st.integers(0, 64), st.floats(0, 3))
def test_shares_come_to_the_budget_and_follow_the_scores(values: list[float | None], count: int, soft: float) -> None:
    parts = shares(values, count, soft)
    assert sum(parts) == count
    known = sorted((value, part) for value, part in zip(values, parts, strict=True) if value is not None)
    # A share is rounded up while there is something left, so that a better row may come out one behind.
    assert all(low[1] <= high[1] + 1 for low, high in pairwise(known) if low[0] < high[0])
    if known:
        assert all(part == 0 for value, part in zip(values, parts, strict=True) if value is None)


@pytest.mark.parametrize(
    ("values", "count", "soft", "parts"),
    [
        ([1.0, 1.0, 1.0], 16, 1.0, [6, 5, 5]),
        ([0.9, 0.1], 8, 0.0, [8, 0]),
        ([None, None], 3, 1.0, [2, 1]),
        ([0.0, math.log(3.0)], 8, 1.0, [2, 6]),
        ([0.2, 0.5, None], 0, 1.0, [0, 0, 0]),
    ],
)
def test_shares(values: list[float | None], count: int, soft: float, parts: list[int]) -> None:
    assert shares(values, count, soft) == parts


def test_splitting_by_a_value_keeps_finished_rows_and_counts_them() -> None:
    plan = compiled(
        HEADER + 'program p(q: text) -> int {\n chat user=q\n generate llm n=3 stop="\\n\\n" temperature=0.8\n'
        " score logprob into sure\n branch {\n { where not finished }\n { generate llm | where finished }\n }\n"
        " split 9 by sure temperature=0.5\n return len(text)\n}"
    )
    (result,) = run_all(plan, [{"q": texts(1)[0]}])
    finished = [row for row in result.rows if row.generated.finished]
    assert len(finished) == 3 and len(result.rows) == 9
    assert [row.columns["group"] for row in result.rows] == [*range(9)]
    assert len({row.path for row in result.rows}) == 9
