"""The promise that samples which programs share are those that each would have drawn, with the same accounts."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from qpdsl.executor.sample_memory.sample_memory import SampleMemory
from qpdsl.grammar.diagnostic import QpError
from qpdsl.planner.optimize.optimizer import optimize
from qpdsl.planner.plan.naive import plan
from qpdsl.planner.plan.physical import PhysicalPlan
from tests.support.planner.lowered import program_of
from tests.support.planner.scripted_runs import ENVIRONMENT, result_of
from tests.support.planner.searches import random_search

TOGETHER = 5


def plans_of(seed: int) -> list[PhysicalPlan]:
    """Both plans of a random program; none where it is not valid."""
    try:
        program = program_of(random_search(seed), "p", ENVIRONMENT)
    except QpError:
        return []
    return [plan(program), optimize(plan(program)).plan]


@pytest.mark.parametrize("part", range(6))
def test_programs_that_share_give_what_each_gives_alone(part: int) -> None:
    """Several programs in any order, again and again, by any plan, over one problem and one memory."""
    rng = random.Random(part)
    found = [own for seed in range(100 + part * TOGETHER, 100 + (part + 1) * TOGETHER) for own in plans_of(seed)]
    alone = [result_of(replace(own, floor=64), part, 1) for own in found]
    memory = SampleMemory()
    order = [*range(len(found))] * 2
    rng.shuffle(order)
    for turn, number in enumerate(order):
        shared, own = result_of(replace(found[number], floor=64), part, 50 + turn, memory), alone[number]
        assert (shared.value, shared.error, shared.score) == (own.value, own.error, own.score)
        assert shared.rows == own.rows
    assert memory.totals.shared_samples > 0 and memory.under_way == {}
