"""Random programs on a scripted engine: with a memory between its plans, each plan gives what it gives alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qpdsl.executor.sample_memory.sample_memory import SampleMemory
from qpdsl.grammar.diagnostic import QpError
from qpdsl.planner.optimize.optimizer import optimize
from qpdsl.planner.plan.naive import plan
from tests.support.planner.lowered import program_of
from tests.support.planner.scripted_runs import ENVIRONMENT, result_of
from tests.support.planner.searches import random_search

PROGRAMS = 15


@pytest.mark.parametrize("part", range(3))
def test_every_plan_gives_what_it_gives_alone(part: int) -> None:
    shared = 0
    for seed in range(part, PROGRAMS, 3):
        try:
            program = program_of(random_search(seed), "p", ENVIRONMENT)
        except QpError:
            continue
        plans = [optimize(plan(program, reads)).plan for reads in (None, ("a",))]
        memory = SampleMemory()
        for order, physical in enumerate((*plans, plan(program), plans[0])):
            # Far above what the engine has to do, so that samples run ahead where they can.
            physical = replace(physical, floor=64)
            alone, result = result_of(physical, seed, order), result_of(physical, seed, order + 10, memory)
            assert (result.value, result.error) == (alone.value, alone.error), random_search(seed)
            assert (result.rows, result.score) == (alone.rows, alone.score), random_search(seed)
        shared += memory.totals.shared_samples
        assert memory.under_way == {}
    assert shared > 12
