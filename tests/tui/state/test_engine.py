"""Memory over time: what is held now, and the most that ever was."""

from __future__ import annotations

from qpdsl.executor.events.events import EngineFigures, EngineStepped, ProcessStarted, ReplicaGone, RequestReached
from qpdsl.tui.report.page import page
from qpdsl.tui.state.run_state import RunState
from tests.support.tui.read_page import Page


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
    assert "m: at most 90 of 100 pages, 0 preemptions" in Page.of(page(events, [], "a run")).parts["Memory over time"]


def test_a_server_without_requests_holds_nothing() -> None:
    figures = {"steps": 3, "sequences": 5, "running": 2, "live_bytes": 4.0, "cached_bytes": 1.0, "free_bytes": 3.0}
    state = RunState()
    state.add(ProcessStarted(at=0.0, command="serve", programs=("greedy",), pid=1, wall=0.0, version="1"))
    state.add(RequestReached(at=0.5, request="r", program="greedy", status="running"))
    report = EngineFigures("m @ replica 1", 1, 50, 0, 9, 100, 0, figures)
    state.add(EngineStepped(at=1.0, report=report))
    model = state.models["m @ replica 1"]
    assert model.steps == 3 and state.rate() > 0 and not state.rests(model)
    state.add(RequestReached(at=1.1, request="r", program="greedy", status="answered"))
    state.now = 20.0
    assert state.rests(model) and state.rate() == 0
    assert model.rested.kv == (0.0, 5.0, 3.0)
    assert not any(model.rested.others[name] for name in ("sequences", "running"))
    assert state.why_gone(model.name) is None
    state.add(ReplicaGone(at=21.0, replica="replica 1", why="was ended by SIGKILL"))
    assert state.why_gone(model.name) == "was ended by SIGKILL"
