"""Whatever the cost may choose for an exact program gives the tokens that every other plan of it gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from qpdsl.planner.optimize.by_cost import of_operators
from qpdsl.planner.optimize.optimizer import optimize
from qpdsl.planner.plan.naive import plan
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.planner.plan.rule import Alternative
from qpdsl.planner.rules.speculative_expansion import depths
from tests.support.paths import PROGRAMS
from tests.support.planner.rules import lowered
from tests.support.planner.runs import answers, assert_same, run_plan


def alternatives(ruled: PhysicalPlan) -> Iterator[Alternative]:
    yield from of_operators(ruled, ruled)
    yield from depths(ruled, ruled)


@pytest.mark.parametrize("name", ["beam_search", "weighted_best_of_n", "self_consistency"])
def test_every_candidate_gives_what_the_naive_plan_gives(name: str) -> None:
    naive = plan(lowered(PROGRAMS / f"{name}.qp"))
    expected, _ = run_plan(naive, 1)
    # A vote is decided early only where nothing but the answer is read.
    ruled = optimize(naive if name == "beam_search" else replace(naive, reads=())).plan
    tried = {(str(alternative.knob), alternative.value) for alternative in alternatives(ruled)}
    assert {value for _, value in tried} >= {"computed by every sample", "shared"}
    assert ("steps to run ahead", "3") in tried or name != "beam_search"
    # Of equal numbers that are weighed the heaviest row says how the number is written.
    assert any(knob.startswith("vote") for knob, _ in tried) or name in ("beam_search", "weighted_best_of_n")
    for alternative in alternatives(ruled):
        if alternative.plan == ruled:
            continue
        results, _ = run_plan(alternative.plan, 1)
        if name == "beam_search":
            assert_same(expected, results)
        assert answers(results) == answers(expected)


def test_what_runs_ahead_needs_shared_prefixes() -> None:
    ruled = optimize(plan(lowered(PROGRAMS / "beam_search.qp"))).plan
    (alone,) = [
        alternative.plan
        for alternative in of_operators(ruled, ruled)
        if alternative.value == "computed by every sample"
    ]
    assert all(alternative.plan == alone for alternative in depths(alone, ruled))
