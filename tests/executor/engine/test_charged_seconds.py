"""The seconds of forwards, divided over the requests that were in them."""

from __future__ import annotations

import pytest

from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.executor.engine.step_report import StepReport
from qpdsl.executor.models.load import load
from qpdsl.executor.models.text_model import PagedTextModel
from qpdsl.executor.requests.drawing import Drafting
from qpdsl.executor.requests.request import GenerateRequest, ReadRequest, SamplingParams
from qpdsl.model_location import locate

MODEL = "zoo/counting"


@pytest.fixture(scope="module")
def model() -> PagedTextModel:
    loaded = load(MODEL, locate(MODEL), "cpu", None)
    assert isinstance(loaded, PagedTextModel)
    return loaded


def asked(*keys: int, length: int = 20, **rest: object) -> GenerateRequest:
    prompt = tuple(5 + (keys[0] + place) % 200 for place in range(length))
    return GenerateRequest(prompt, keys, SamplingParams(1.0), 12, **rest)  # type: ignore[arg-type]


def engine_of(
    model: PagedTextModel, config: EngineConfig | None = None, pages: int = 200
) -> tuple[PagedEngine, list[float]]:
    seconds: list[float] = []

    def stepped(report: StepReport) -> None:
        seconds.append(report.seconds)

    engine = PagedEngine(config, stepped, pages * model.paged.layout.page_bytes)
    engine.add(MODEL, model.paged)
    return engine, seconds


@pytest.mark.parametrize(
    ("config", "pages"),
    [(EngineConfig(), 200), (EngineConfig(max_sequences=3, token_budget=16), 12)],
    ids=["room for all", "chunks, and little memory"],
)
def test_all_seconds_are_charged_to_somebody(model: PagedTextModel, config: EngineConfig, pages: int) -> None:
    engine, seconds = engine_of(model, config, pages)
    requests = [
        asked(1, 2, 3, length=40),
        asked(4),
        asked(5, 6, draft=Drafting("ngram")),
        ReadRequest(tuple(range(5, 60)), (20, 54), (3, 4)),
        asked(7, 8, 9, 10, 11),
    ]
    tickets = [engine.submit(MODEL, request) for request in requests]
    for _ in range(6):
        engine.step()
    tickets[-1].cancel()
    while engine.has_work:
        engine.step()
    assert sum(ticket.seconds for ticket in tickets) == pytest.approx(sum(seconds), rel=1e-9)
    assert all(ticket.seconds > 0 for ticket in tickets[:-1])
    assert tickets[3].charged.drawn == 0 < tickets[0].charged.drawn


def test_a_prompt_is_told_from_what_is_drawn(model: PagedTextModel) -> None:
    engine, seconds = engine_of(model)
    ticket = engine.submit(MODEL, asked(1, 2, 3, 4, length=60))
    engine.step()
    assert ticket.charged.prompt == pytest.approx(seconds[0]) and ticket.charged.drawn == 0
    while engine.has_work:
        engine.step()
    assert ticket.charged.prompt == pytest.approx(seconds[0])
    assert ticket.charged.drawn == pytest.approx(sum(seconds[1:]))


def test_the_last_step_is_charged_before_anyone_goes_on(model: PagedTextModel) -> None:
    engine, seconds = engine_of(model)
    ticket = engine.submit(MODEL, asked(1))
    while not ticket.done:
        engine.step()
    assert ticket.seconds == pytest.approx(sum(seconds))
