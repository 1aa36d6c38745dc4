"""When samples run ahead: while the engine has little to do, and a step has room for more at little cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

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


ROUNDS = """model llm = "remote"
program p(problem: text) -> int {
  chat user=problem
  repeat 5 gather until count() >= 6 {
    generate llm n=2 temperature=0.8 max_tokens=60
    where tokens > 0
  }
  return count()
}"""


def ran_ahead(text: str, spare_rows: int | None) -> tuple[int, object]:
    """How many requests were made ahead, and what the program gave."""
    result, engine = result_of(compiled(text), script, replace(ALL_CAPABILITIES, spare_rows=spare_rows))
    return sum(request.priority > 0 for request in engine.requests), result.value


@pytest.mark.parametrize("text", [STEPS, ROUNDS])
def test_no_sample_runs_ahead_where_a_step_has_no_room(text: str) -> None:
    some, value = ran_ahead(text, None)
    assert some > 0
    assert ran_ahead(text, 0) == (0, value)
    assert ran_ahead(text, 100) == (some, value)


def test_rounds_that_ran_ahead_count_only_where_they_are_reached() -> None:
    result, engine = result_of(compiled(ROUNDS), script, ALL_CAPABILITIES)
    ahead = [request for request in engine.requests if request.priority > 0]
    # Of five rounds three count; the fourth began beside the third.
    assert (result.value, len(engine.requests), len(ahead)) == (6, 4, 3)
    assert len({key for request in engine.requests for key in request.keys}) == 8


@pytest.mark.parametrize("text", [STEPS, ROUNDS])
def test_a_program_says_how_far_samples_run_ahead(text: str) -> None:
    def asked(ahead: str) -> tuple[int, object]:
        return ran_ahead(text.replace("temperature=0.8", f"temperature=0.8 ahead={ahead}"), None)

    none, one, most = (asked(ahead) for ahead in ("0", "1", "3"))
    assert none[0] == 0 < one[0] <= most[0]
    assert none[1] == one[1] == most[1] == ran_ahead(text, None)[1]
