"""What `split … by`, `peek` and the searches made of them do."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpdsl.executor.runtime.operators.relational import shares
from tests.support.executor.programs import HEADER, arguments, compiled, run_all, shipped, texts

SCORES = st.lists(st.one_of(st.none(), st.floats(-5, 5)), min_size=1, max_size=12)


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


def test_a_peek_leaves_rows_as_they_were_and_their_columns_what_it_saw() -> None:
    head = HEADER + 'program p(q: text) -> float {\n chat user=q\n generate llm n=3 stop="\\n\\n" temperature=0.8\n'
    rest = " generate llm n=1 temperature=0\n score prm\n"
    given = [{"q": text} for text in texts(2)]
    peeked = run_all(compiled(head + " peek {\n" + rest + " }\n return score\n}"), given)
    plain = run_all(compiled(head + " return tokens\n}"), given)
    gone_on = run_all(compiled(head + rest + " return score\n}"), given)
    for one, two, three in zip(peeked, plain, gone_on, strict=True):
        assert [{**row.columns, "score": 0} for row in one.rows] == [{**row.columns, "score": 0} for row in two.rows]
        assert [row.columns["score"] for row in one.rows] == [row.columns["score"] for row in three.rows]
        assert [row.generated for row in one.rows] == [row.generated for row in two.rows]


def test_rebase_stays_within_its_budget_and_votes_over_what_is_finished() -> None:
    plan = shipped("rebase")
    given = [arguments(plan, problem=problem, budget=6, depth=12) for problem in texts(3)]
    for result in run_all(plan, given):
        assert result.error is None and result.value is not None
    body = HEADER + "program p(q: text) -> int {\n chat user=q\n split 6\n repeat 12 until all(finished) {\n"
    body += ' generate llm stop="\\n\\n" temperature=0.8\n score prm\n split 6 by score temperature=0.2\n }\n'
    for result in run_all(compiled(body + " return len(text)\n}"), [{"q": text} for text in texts(3)]):
        assert len(result.rows) == 6 and all(row.columns["finished"] for row in result.rows)
        assert max(Counter(row.path for row in result.rows).values()) == 1


def test_lookahead_judges_a_step_by_what_follows_it() -> None:
    plan = shipped("lookahead")
    given = [arguments(plan, problem=problem, width=2, expand=2, depth=8) for problem in texts(2)]
    for result in run_all(plan, given):
        assert result.error is None and result.value is not None
