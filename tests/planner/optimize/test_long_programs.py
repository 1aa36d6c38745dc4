"""A long program is planned in time."""

from __future__ import annotations

from qpdsl.planner.optimize.optimizer import optimize
from qpdsl.planner.plan.naive import plan
from tests.support.planner.lowered import program_of
from tests.support.timing import assert_quick, cpu_seconds

STAGES = 1_000


def test_planning_does_not_take_the_square_of_the_stages() -> None:
    """Each stage makes a column, and every one has those of all before it."""
    lets = "".join(f'  let a{number} = "{{a{number - 1}}}x"\n' for number in range(1, STAGES))
    body = f"  let a0 = problem\n{lets}  chat user=a{STAGES - 1}\n  generate llm max_tokens=4\n  return text\n"
    program = program_of(f'model llm = "zoo/counting"\nprogram p(problem: text) -> text {{\n{body}}}\n', "p")
    assert_quick(lambda: cpu_seconds(lambda: optimize(plan(program))), 1.5)
