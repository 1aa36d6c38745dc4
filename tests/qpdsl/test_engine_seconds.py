"""The engine's seconds of each row: together they are those of all forwards, whatever the rows did."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qpdsl.executor.events.events import EngineStepped, Event
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.session.session import Session
from tests.support.executor.programs import HEADER, arguments, case, compiled, run_all, shipped, texts

VOTE = f"""{HEADER}program p(problem: text) {{
  chat user=problem
  generate llm n=12 temperature=0.8
  extract answer = /is (\\d+)/
  vote answer
}}"""
PLANS = {
    "beam search, with samples that run ahead": replace(shipped("beam_search"), floor=64),
    "a vote that gives samples up": compiled(VOTE),
    "scores of a verifier": shipped("best_of_n"),
    "a filter": case("filter"),
}


def steps_of(session: Session) -> list[float]:
    """The seconds of the session's steps, as they come."""
    seconds: list[float] = []

    def see(event: Event) -> None:
        if isinstance(event, EngineStepped):
            seconds.append(event.report.seconds)

    session.events.subscribe(see)
    return seconds


@pytest.mark.parametrize("name", PLANS)
def test_all_seconds_belong_to_some_row(name: str) -> None:
    plan: PhysicalPlan = PLANS[name]
    session = Session()
    steps = steps_of(session)
    results = run_all(plan, [arguments(plan, problem=text) for text in texts(4)], session=session)
    assert [result.error for result in results] == [None] * 4
    assert sum(result.engine_seconds for result in results) == pytest.approx(sum(steps), rel=1e-6)
    assert all(result.engine_seconds > 0 for result in results)


@pytest.mark.parametrize("name", ["scores of a verifier", "a vote that gives samples up"])
def test_what_was_drawn_before_counts_what_it_took_then(name: str) -> None:
    plan = PLANS[name]
    session = Session(share_samples=True)
    rows = [arguments(plan, problem=text) for text in texts(2)]
    first = run_all(plan, rows, session=session)
    steps = steps_of(session)
    again = run_all(plan, rows, session=session)
    for before, after in zip(first, again, strict=True):
        # A vote gives up other samples now, and the prompts of the scores were in the cache.
        assert 0.2 < after.engine_seconds / before.engine_seconds < 5
    assert sum(steps) < 0.5 * sum(result.engine_seconds for result in again)
    assert sum(result.counts["saved_tokens"] for result in again) > 0
