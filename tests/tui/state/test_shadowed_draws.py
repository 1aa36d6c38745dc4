"""What the dashboard has of an operator's shadows."""

from __future__ import annotations

from qpdsl.executor.events.events import OperatorDone
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


def test_shadows_add_up_over_runs() -> None:
    state = RunState()
    for event in (done(shadowed=10, differed=1), done(), done(shadowed=4, differed=2)):
        state.add(event)
    assert (state.totals("1").shadowed, state.totals("1").differed) == (14, 3)
