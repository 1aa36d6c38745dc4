"""Memory over time: what is held now, and the most that ever was."""

from __future__ import annotations

from qpdsl.executor.events.events import EngineFigures, EngineStepped
from qpdsl.tui.report.page import report_data
from qpdsl.tui.state.run_state import RunState


def test_memory_falls_where_it_is_given_back() -> None:
    def step(at: float, held: int) -> EngineStepped:
        return EngineStepped(at=at, report=EngineFigures("m", 1, 1, 0, held, 100, 0, {}))

    events = [step(0.1, 40), step(0.2, 90), step(1.0, 10), step(2.0, 30)]
    state = RunState()
    for event in events:
        state.add(event)
    model = state.models["m"]
    assert [model.series.at(at).pages for at in (0.1, 0.6, 1.1, 1.6, 2.1)] == [90, 90, 10, 10, 30]
    assert model.most_pages == 90
    (reported,) = report_data(events, [])["models"]
    assert reported["most"] == 90 and reported["held"][-1] == 30 and min(reported["held"]) == 10
