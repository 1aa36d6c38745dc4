"""A server tells whoever watches it of each request: that it waits, that it runs, and how it ended."""

from __future__ import annotations

from qpdsl.executor.events.codec import decode, encode
from qpdsl.executor.events.events import Event, ProcessStarted, RequestReached
from qpdsl.tui.state.run_state import RunState
from tests.support.serving.running_server import Running


def test_a_request_is_a_row_from_its_arrival_to_its_end(server: Running) -> None:
    seen: list[Event] = []
    unsubscribe = server.session.events.subscribe(seen.append)
    question = "Mia has 3 boxes with 4 cards in each box. How many cards does Mia have?"
    answer = server.chat("greedy", question)
    refused = server.chat("greedy", question, max_tokens=-1)
    unsubscribe()
    assert answer.status_code == 200 and refused.status_code == 400
    reached = [event for event in seen if isinstance(event, RequestReached)]
    assert [event.status for event in reached] == ["waiting", "running", "answered"]
    assert {event.request for event in reached} == {answer.json()["id"]}
    assert reached[-1].sampled_tokens == answer.json()["usage"]["completion_tokens"] > 0
    state = RunState()
    state.add(ProcessStarted(command="serve", programs=("greedy",), pid=1, wall=0.0, version="0"))
    for event in seen:
        # As it comes over a socket.
        state.add(decode(encode(event, 0.0)))
    assert [(request.program, request.status) for request in state.requests.values()] == [("greedy", "answered")]
    # A run of a program in it is no row besides.
    assert state.rows == {} and state.running == 0
