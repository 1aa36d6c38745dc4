"""Whatever the cost may choose for an exact program gives the tokens that every other plan of it gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from qpdsl.planner.optimize.alternatives import of_operators
from qpdsl.planner.optimize.optimizer import optimize
from qpdsl.planner.plan.naive import plan
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.planner.rules.rule import Alternative
from qpdsl.planner.rules.speculative_expansion import depths
from tests.planner.rules.test_proofs import assert_same, ran
from tests.support.paths import PROGRAMS
from tests.support.planner.rules import lowered


def alternatives(ruled: PhysicalPlan) -> Iterator[Alternative]:
    yield from of_operators(ruled, ruled)
    yield from depths(ruled, ruled)


@pytest.mark.parametrize("name", ["beam_search", "weighted_best_of_n", "self_consistency"])
def test_every_candidate_gives_what_the_naive_plan_gives(name: str) -> None:
    naive = plan(lowered(PROGRAMS / f"{name}.qp"))
    expected, _ = ran(naive, 1)
    # A vote is decided early only where nothing but the answer is read.
    ruled = optimize(naive if name == "beam_search" else replace(naive, reads=())).plan
    tried = {(str(alternative.knob), alternative.value) for alternative in alternatives(ruled)}
    assert {value for _, value in tried} >= {"computed by every sample", "shared"}
    assert ("steps to run ahead", "3") in tried or name != "beam_search"
    assert any(knob.startswith("vote") for knob, _ in tried) or name == "beam_search"
    for alternative in alternatives(ruled):
        if alternative.plan == ruled:
            continue
        results, _ = ran(alternative.plan, 1)
        if name == "beam_search":
            assert_same(expected, results)
        assert [(result.value, result.error) for result in results] == [
            (result.value, result.error) for result in expected
        ]


def test_what_runs_ahead_needs_shared_prefixes() -> None:
    ruled = optimize(plan(lowered(PROGRAMS / "beam_search.qp"))).plan
    (alone,) = [
        alternative.plan
        for alternative in of_operators(ruled, ruled)
        if alternative.value == "computed by every sample"
    ]
    assert all(alternative.plan == alone for alternative in depths(alone, ruled))
