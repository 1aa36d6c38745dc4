"""`split`: copies of rows, a fixed number of each or a budget shared out by value."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from functools import partial
from itertools import pairwise
from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpdsl.executor.runtime.instance.candidates import uniform
from qpdsl.executor.runtime.instance.instance import RowError
from qpdsl.executor.runtime.operators.split import resampled, shares, split
from qpdsl.grammar.words import DRAWN, Drawn
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


@pytest.mark.parametrize(
    ("draw", "count", "places"),
    [
        ("multinomial", 8, [3, 2, 2, 1, 2, 1, 1, 3]),
        ("multinomial", 4, [3, 2, 2, 1]),
        ("systematic", 8, [0, 1, 2, 2, 2, 3, 3, 3]),
        ("systematic", 4, [1, 2, 3, 3]),
    ],
)
def test_copies_are_drawn_as_the_reference_draws_them(draw: Drawn, count: int, places: list[int]) -> None:
    assert uniform(0, 1, 2, 3) == 0.9193085208992178
    assert resampled([0.1, 0.2, 0.3, 0.4], count, draw, partial(uniform, 7, 2, 1)) == places


@pytest.mark.parametrize("draw", DRAWN)
def test_copies_are_in_proportion_and_none_is_of_what_weighs_nothing(draw: Drawn) -> None:
    weights = [0.0, 0.05, 0.15, 0.3, 0.0, 0.5, 0.0]
    drawn = [Counter(resampled(weights, 10, draw, partial(uniform, seed))) for seed in range(1000)]
    for place, weight in enumerate(weights):
        counts = [counter[place] for counter in drawn]
        assert abs(fmean(counts) - 10 * weight) <= 4 * (stdev(counts) / math.sqrt(1000))
        assert draw == "multinomial" or set(counts) <= {math.floor(10 * weight), math.ceil(10 * weight)}
    assert resampled([0.1] * 10, 3, draw, lambda slot: 1 - 2**-54) == ([9] * 3 if draw == "multinomial" else [3, 6, 9])


_START, _WORTH = (0.4, 0.3, 0.2, 0.1), (0.2, 0.9, 0.5, 0.05)
_MOVES = ((0.5, 0.2, 0.2, 0.1), (0.1, 0.6, 0.2, 0.1), (0.2, 0.2, 0.4, 0.2), (0.3, 0.1, 0.1, 0.5))


@pytest.mark.parametrize("draw", DRAWN)
def test_what_a_particle_filter_expects_is_unbiased(draw: Drawn) -> None:
    """The mean of Ẑ over runs of four particles is Z of a chain of four states, by enumeration 0.089649457."""

    def estimate(seed: int) -> float:
        total = 1.0
        states: list[int] = []
        for step in range(4):
            moves = [_MOVES[state] for state in states] or [_START] * 4
            states = [
                place
                for number, move in enumerate(moves)
                for place in resampled(move, 1, draw, partial(uniform, seed, step, number))
            ]
            worth = [_WORTH[state] for state in states]
            total *= fmean(worth)
            states = [states[place] for place in resampled(worth, 4, draw, partial(uniform, seed, 9, step))]
        return total

    found = [estimate(seed) for seed in range(3000)]
    assert abs(fmean(found) - 0.089649457) < 4 * stdev(found) / math.sqrt(len(found))


def test_finished_rows_are_shared_out_where_the_program_says_so_and_groups_by_themselves() -> None:
    def left(stages: str) -> list[tuple[int, ...]]:
        source = " chat user=q\n split 2\n generate llm n=3 temperature=0.8\n score logprob into sure\n"
        (result,) = run_all(
            compiled(f"{HEADER}program p(q: text) -> text {{\n{source}{stages}\n}}"), [{"q": texts(1)[0]}]
        )
        assert all(row.generated.finished for row in result.rows)
        return [row.path for row in result.rows]

    everything = [(group, sample) for group in range(2) for sample in range(3)]
    assert [path[:2] for path in left(" split 6 by sure draw=systematic")] == everything
    (best,) = left(" best by sure")
    assert best in {path[:2] for path in left(" split 2 by sure temperature=0 draw=systematic finished=share")}
    islands = left(" split 4 by sure draw=multinomial finished=share per group")
    assert set(left(" split 2 by sure draw=multinomial finished=share per group")) <= set(islands)


def test_a_row_has_as_many_copies_as_its_own_column_says() -> None:
    op = ops.Split(stage=0, span=NOWHERE, count=expr("c"))
    copies = asyncio.run(split(op, rows({"c": 2}, {"c": 0}, {"c": 1}), instance()))
    assert [(row.path, row.columns["group"]) for row in copies] == [((0, 0), 0), ((0, 1), 1), ((2, 0), 2)]
    for count in (-1, 1.5, None):
        with pytest.raises(RowError, match="`split` must be a whole number"):
            asyncio.run(split(op, rows({"c": count}), instance()))


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


def test_rows_of_a_list_are_drawn_without_a_conversation() -> None:
    stages = (
        " each shot in shots\n first 3\n where number() > 1\n split 4 by 0 draw=systematic\n"
        " order by random()\n keep int(count() / 2) by random()"
    )
    plan = compiled(f"{HEADER}program p(shots: [text]) -> [text] {{\n{stages}\n return list(shot)\n}}")
    drawn = [run_all(plan, [{"shots": ("a", "b", "c", "d")}], seed=seed)[0].value for seed in range(8)]
    found = {"".join(sorted(map(str, some))) for some in drawn if isinstance(some, list)}
    assert len(found) > 1 and found <= {"bb", "bc", "cc"}
