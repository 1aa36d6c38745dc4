"""`first`: the first rows as they stand, whatever the rules make of the plan around it."""

from __future__ import annotations

import pytest

from qpdsl.planner.optimize.optimizer import optimize
from qpdsl.planner.plan.naive import plan
from tests.support.planner.lowered import program_of
from tests.support.planner.scripted_runs import ENVIRONMENT, result_of
from tests.support.planner.searches import HEADER

PROGRAM = """program p(problem: text, k: int = 2) -> text {
  chat user=problem
  split 3
  repeat 2 { generate llm n=3 temperature=1.0 stop="." | score prm given problem | %s }
  order by score
  %s
  return text
}"""


@pytest.mark.parametrize(
    ("inside", "after"), [("first k per group", "first"), ("first 5", "first 1"), ("first", "first 9")]
)
def test_plans_agree(inside: str, after: str) -> None:
    program = program_of(HEADER + PROGRAM % (inside, after), "p", ENVIRONMENT)
    naive = plan(program)
    optimized = optimize(naive).plan
    assert optimized.rules
    for seed in range(3):
        one, other = (result_of(each, seed, 0) for each in (naive, optimized))
        assert (one.value, one.error, [row.path for row in one.rows]) == (
            other.value, other.error, [row.path for row in other.rows],
        )  # fmt: skip
        assert one.error is not None or after == "first 9" or len(one.rows) == 1
