"""What the dashboard has of an operator's calls to servers."""

from __future__ import annotations

from qpdsl.executor.events.events import OperatorDone
from qpdsl.tui.screens.plan import operator_facts
from qpdsl.tui.state.plan import PlanLine, PlanTree
from qpdsl.tui.state.run_state import RunState


def done(**counts: int) -> OperatorDone:
    return OperatorDone(
        instance="a",
        operator="1",
        rows_in=1,
        rows_out=1,
        prompt_tokens=5,
        sampled_tokens=5,
        seconds=0.1,
        counts=counts,
    )


def facts(state: RunState, repeats: str = "exact") -> str:
    state.plan = PlanTree.of({"program": "p", "operators": []})
    line = PlanLine("1", "", "generate llm", "Generate", "on a server", "exact", 1.0, {}, None, False, repeats)
    return str(operator_facts(state, line)._parts)


def test_calls_add_up_over_runs_and_are_told() -> None:
    state = RunState()
    for event in (done(requests=10, retries=1, cost_millionths=1500), done(), done(requests=4, saved_calls=2, draws=3)):
        state.add(event)
    assert state.totals("1").calls == {"requests": 14, "retries": 1, "saved_calls": 2, "cost_millionths": 1500}
    shown = facts(state, "replayable")
    for fact in (("requests", "14"), ("sent again", "1"), ("calls saved", "2"), ("cost", "0.0015")):
        assert str(fact) in shown
    assert str(("keeps to", "replayable")) in shown


def test_without_a_server_nothing_is_told_of_one() -> None:
    state = RunState()
    state.add(done(draws=4))
    shown = facts(state)
    assert "requests" not in shown and "cost" not in shown and str(("keeps to", "exact")) in shown
