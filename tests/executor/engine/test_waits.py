"""The waits for tokens that steps end: each sample's first, and each token after it, in one way or another."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.executor.engine.step_report import StepReport
from qpdsl.executor.requests.drawing import Drafting
from qpdsl.executor.requests.latencies import bucket_of
from qpdsl.executor.requests.request import GenerateRequest, ReadRequest, SamplingParams
from tests.support.executor.constrained import engine_with, jumping, requests
from tests.support.executor.models import engine_of, paged, served

REQUEST = GenerateRequest(tuple(range(1, 30)), (1, 2, 3), SamplingParams(1.0), 12)


@cache
def model() -> PagedModel:
    return paged("llama")


def counted(reports: list[StepReport]) -> tuple[int, int]:
    """First tokens and further ones for which somebody waited."""
    first, between = Counter[int](), Counter[int]()
    for report in reports:
        first.update(report.first_waits)
        between.update(report.waits)
    return first.total(), between.total()


@pytest.mark.parametrize(
    ("pages", "config", "drafted"),
    [(400, EngineConfig(), False), (8, EngineConfig(token_budget=20), False), (400, EngineConfig(), True)],
    ids=["batch", "little-memory", "drafts"],
)
def test_every_token_of_a_sample_ends_a_wait(pages: int, config: EngineConfig, drafted: bool) -> None:
    reports: list[StepReport] = []
    draft = Drafting("ngram", length=3, fixed=True) if drafted else None
    batch = tuple(replace(REQUEST, keys=(index, index + 50), draft=draft) for index in range(6))
    samples = [sample for row in served(engine_of(model(), pages, config, reports.append), batch) for sample in row]
    assert counted(reports) == (12, sum(len(sample.tokens) - 1 for sample in samples))
    assert (reports[-1].preemptions > 0) == (pages == 8)


def test_what_is_forced_with_the_first_token_is_no_wait() -> None:
    reports: list[StepReport] = []
    samples = [sample for row in served(engine_with(on_step=reports.append), jumping(requests())) for sample in row]
    first, between = counted(reports)
    tokens = sum(len(sample.tokens) for sample in samples)
    assert first == len(samples) and 0 < between < tokens - len(samples)


def test_nobody_waits_for_what_runs_ahead_until_it_is_needed() -> None:
    def run(steps: int | None) -> tuple[int, int]:
        """With the request needed after so many steps, or never."""
        reports: list[StepReport] = []
        engine = PagedEngine(on_step=reports.append)
        engine.add("m", model())
        ticket = engine.submit("m", replace(REQUEST, priority=1))
        while engine.has_work:
            if len(reports) == steps:
                ticket.promote()
            engine.step()
        return counted(reports)

    assert run(None) == (0, 0)
    assert run(0) == (3, 33)
    # Eleven tokens of each of the three samples come after the first.
    assert run(5) == (0, 3 * (12 - 5))


def test_reading_ends_no_wait() -> None:
    reports: list[StepReport] = []
    engine = PagedEngine(on_step=reports.append)
    engine.add("m", model())
    engine.submit("m", ReadRequest(REQUEST.prompt, (3,), (1,)))
    while engine.has_work:
        engine.step()
    assert reports and counted(reports) == (0, 0)


def test_a_request_that_goes_on_with_a_sample_ends_no_first_wait_and_waits_since_its_latest_token() -> None:
    reports: list[StepReport] = []
    engine = engine_of(model(), 400, EngineConfig(), reports.append)
    began = time.perf_counter() - 100
    request = replace(REQUEST, drawn=4, max_tokens=2, since=began)
    assert [len(sample.tokens) for sample in served(engine, (request,))[0]] == [2, 2, 2]
    assert counted(reports) == (0, 6)
    between = sum((Counter(report.waits) for report in reports), Counter[int]())
    assert sum(count for bucket, count in between.items() if bucket >= bucket_of(100)) == 3
