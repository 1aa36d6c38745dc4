"""The parts of the memory over the steps of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from qpdsl.executor.engine.memory.budget import ResidentMemory
from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.executor.engine.step_report import StepReport
from qpdsl.executor.events.codec import decode, encode
from qpdsl.executor.events.events import EngineFigures, EngineStepped
from qpdsl.executor.measure.run_meter import MemoryMeter
from qpdsl.executor.models.load import load
from qpdsl.executor.requests.request import GenerateRequest, SamplingParams
from qpdsl.model_location import locate


def reports(sequences: int = 4) -> list[StepReport]:
    """Of the steps of a small model that draws eight tokens for each of some sequences."""
    model = load("zoo/counting-mini", locate("zoo/counting-mini"), "cpu", None)
    found: list[StepReport] = []
    engine = PagedEngine(EngineConfig(), found.append, 1 << 20)
    engine.add("mini", model.paged)
    for key in range(sequences):
        engine.submit("mini", GenerateRequest((5, 6, 7), (key,), SamplingParams(1.0), 8))
    while engine.has_work:
        engine.step()
    return found


def test_a_step_tells_what_it_holds() -> None:
    steps = reports()
    rows = [step.prefill_tokens + step.decode_tokens for step in steps]
    assert len({step.weight_bytes for step in steps}) == 1 and steps[0].weight_bytes > 4 * 100_000
    per_row = steps[0].activation_bytes / rows[0]
    assert per_row > 0
    assert [step.activation_bytes for step in steps] == [count * per_row for count in rows]
    if Path("/proc/self/statm").exists():
        assert all(step.resident_bytes > step.weight_bytes + step.activation_bytes for step in steps)


def test_the_figures_of_a_trace_are_those_of_the_run() -> None:
    live, replayed = MemoryMeter({"mini": 64}), MemoryMeter({"mini": 64})
    for step in reports():
        live.step(step)
        event = decode(encode(EngineStepped(at=1.0, report=step), 0.0))
        assert isinstance(event, EngineStepped) and isinstance(event.report, EngineFigures)
        replayed.step(event.report)
    assert live.parts() == replayed.parts()


def figures(model: str, held: int, **others: float) -> EngineFigures:
    return EngineFigures(model, 1, 1, 0, held, 100, 0, others)


def test_peaks_and_means_over_all_models() -> None:
    meter = MemoryMeter({"llm": 10, "prm": 20})
    meter.step(figures("llm", 3, weight_bytes=100, activation_bytes=7, leased_bytes=50, resident_bytes=1000))
    meter.step(figures("prm", 2, weight_bytes=200, activation_bytes=1, leased_bytes=60, resident_bytes=1000))
    meter.step(figures("llm", 1, weight_bytes=100, activation_bytes=4, leased_bytes=50, resident_bytes=900))
    parts = meter.parts()
    assert (parts["weights"].peak, parts["weights"].mean) == (300, pytest.approx(700 / 3))
    assert (parts["activations"].peak, parts["activations"].mean) == (7, 4)
    assert (parts["kv"].peak, parts["kv"].mean) == (70, pytest.approx((30 + 70 + 50) / 3))
    assert parts["kv_leased"].peak == 110
    assert parts["other"].peak == 1000 - 100 - 7 - 50


def test_nothing_where_nobody_tells() -> None:
    meter = MemoryMeter({})
    meter.step(figures("llm", 3))
    assert meter.parts() == {}


def test_what_is_taken_is_read_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter((100, 200, 300))
    clock = iter((0.0, 0.001, 0.5, 0.501))
    monkeypatch.setattr("qpdsl.executor.engine.memory.budget._process_bytes", lambda: next(sizes))
    monkeypatch.setattr("qpdsl.executor.engine.memory.budget.time.monotonic", lambda: next(clock))
    memory = ResidentMemory("cpu")
    assert [memory.bytes() for _ in range(4)] == [100, 100, 200, 200]
