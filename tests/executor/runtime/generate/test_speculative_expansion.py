"""When samples run ahead: while the engine has little to do, and a step has room for more at little cost."""

from __future__ import annotations

from dataclasses import replace

from tests.support.executor.programs import compiled
from tests.support.executor.scripted_engine import ALL_CAPABILITIES, result_of
from tests.support.planner.scripted_runs import script

STEPS = """model llm = "remote"
program p(problem: text) -> text {
  chat user=problem
  repeat 3 until all(finished) {
    generate llm n=3 stop="\\n\\n" temperature=0.8 max_tokens=60
    score judge(llm, "Is it right so far?", 1..5)
    keep 2 by score
  }
  best by score
  return text
}"""


def ran_ahead(spare_rows: int | None) -> tuple[int, object]:
    """How many requests were made ahead, and what the program gave."""
    result, engine = result_of(compiled(STEPS), script, replace(ALL_CAPABILITIES, spare_rows=spare_rows))
    return sum(request.priority > 0 for request in engine.requests), result.value


def test_no_sample_runs_ahead_where_a_step_has_no_room() -> None:
    some, value = ran_ahead(None)
    assert some > 0
    assert ran_ahead(0) == (0, value)
    assert ran_ahead(100) == (some, value)
