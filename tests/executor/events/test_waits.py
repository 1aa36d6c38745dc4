"""The waits of a step in a trace, and what reads them from there."""

from __future__ import annotations

import json

import pytest

from qpdsl.executor.events.codec import BadEvent, decode, encode
from qpdsl.executor.events.events import EngineFigures, EngineStepped
from qpdsl.executor.measure.run_meter import RunMeter
from qpdsl.executor.requests.latencies import bucket_of
from qpdsl.tui.state.engine import ModelState

FIRST, BETWEEN = {bucket_of(0.25): 2}, {bucket_of(0.001): 7, bucket_of(0.004): 1}


def step(**waits: dict[int, int]) -> EngineStepped:
    return EngineStepped(at=1.0, report=EngineFigures("m", 3, 8, 0, 1, 9, 0, {"seconds": 0.5}, **waits))


def test_they_come_back_and_readers_add_them_up() -> None:
    line = encode(step(first_waits=FIRST, waits=BETWEEN), 0.0)
    event = decode(line)
    assert event == step(first_waits=FIRST, waits=BETWEEN)
    assert isinstance(event, EngineStepped) and isinstance(event.report, EngineFigures)
    meter, state = RunMeter(), ModelState("m", event.report)
    for _ in range(2):
        meter.see(event)
        state.add(event)
    figures = meter.figures().models["m"]
    assert figures.first_token == state.first_token == pytest.approx((0.25,) * 3, rel=0.0222)
    assert figures.between_tokens == state.between_tokens == pytest.approx((0.001, 0.004, 0.004), rel=0.0222)


def test_a_step_without_any_writes_none_and_a_strange_bucket_is_no_event() -> None:
    line = encode(step(), 0.0)
    assert "waits" not in line and decode(line) == step()
    for odd in ({"9" * 9: 1}, {"x": 1}, {"3": "many"}, [1]):
        record = json.loads(line)
        record["report"]["waits"] = odd
        with pytest.raises(BadEvent):
            decode(json.dumps(record))
