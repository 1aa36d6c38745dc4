"""On a device the next steps are launched before a step is told of: the same tokens, one wait a step, nothing lost."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest

from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.model_runner import ModelRunner
from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.executor.engine.scheduler import Scheduler
from qpdsl.executor.engine.step_report import StepReport
from qpdsl.executor.kernels import paged_attention
from qpdsl.executor.requests.drafting import Drafting
from qpdsl.executor.requests.early_exit import EarlyExit
from qpdsl.executor.requests.request import (
    Completion,
    GenerateRequest,
    LogProbRequest,
    Owner,
    ReadRequest,
    Request,
    Sample,
    SamplingParams,
    TreeRequest,
)
from qpdsl.executor.requests.ticket import Ticket
from tests.support.executor.fake_device import FakeLane, fake_device
from tests.support.executor.host_reads import HostReads
from tests.support.executor.models import VOCABULARY, paged, random_model
from tests.support.executor.programs import run_all, shipped, texts
from tests.support.executor.rule_mask import RuleMask

SAMPLING = [SamplingParams(0.8), SamplingParams(1.0, top_p=0.8), SamplingParams(0.0), SamplingParams(1.3, top_k=9)]
ARCHITECTURES = {"writer": "llama", "reader": "gpt_neox"}


@pytest.fixture(autouse=True)
def _twins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_attention, "_INTERPRETED", False)


@pytest.fixture
def lane() -> Iterator[FakeLane]:
    with fake_device() as lane:
        yield lane


@cache
def models(kernels: bool = False) -> dict[str, PagedModel]:
    """Two models whose pages differ in size: compiled for the CPU, whose bits depend on no batch, or on kernels."""
    if kernels:
        return {name: PagedModel(random_model(kind), kernels=True) for name, kind in ARCHITECTURES.items()}
    return {name: paged(kind) for name, kind in ARCHITECTURES.items()}


def engine_of(
    pages: int = 400, config: EngineConfig | None = None, reports: list[StepReport] | None = None, kernels: bool = False
) -> PagedEngine:
    """Both models in the memory of so many pages of the larger ones."""
    own = models(kernels)
    size = max(model.layout.page_bytes for model in own.values())
    engine = PagedEngine(config, None if reports is None else reports.append, (pages + 2) * size)
    for name, model in own.items():
        engine.add(name, model)
    return engine


@cache
def requests(kernels: bool = False) -> tuple[tuple[str, Request], ...]:
    """Samples and reads of both models: shared prompts, fan-outs, masks, drafts, exits, filters, trees."""
    rng = random.Random(3)

    def some(least: int, most: int) -> tuple[int, ...]:
        return tuple(rng.randrange(1, VOCABULARY) for _ in range(rng.randint(least, most)))

    stem, batch = some(40, 40), list[tuple[str, Request]]()
    for index in range(12):
        prompt = stem[: rng.choice([0, 20, 33])] + some(1, 9)
        keys = tuple(range(1000 * index, 1000 * index + (5 if index == 5 else 2)))
        request = GenerateRequest(prompt, keys, SAMPLING[index % 4], rng.randint(1, 12))
        request = replace(request, mask=RuleMask if index % 4 == 1 else None, jump=index % 8 == 1)
        request = replace(request, draft=Drafting("ngram", length=3, fixed=True) if index % 3 == 0 else None)
        request = replace(request, exit=EarlyExit(0.1, deferred=not kernels) if index == 10 else None)
        batch.append(("reader" if index % 4 == 3 else "writer", request))
    for index in range(5):
        tokens = stem[: rng.choice([0, 20, 40])] + some(2, 30)
        batch.append(("reader", ReadRequest(tokens, tuple(range(0, len(tokens), 3)), (1, 5 + index))))
        batch.append(("reader", LogProbRequest(tokens, some(1, 5), (7,))))
        batch.append(("writer", TreeRequest(tokens, (some(2, 3), some(1, 4)), (7,))))
    rng.shuffle(batch)
    return tuple(batch)


def served(engine: PagedEngine, batch: tuple[tuple[str, Request], ...], seed: int = 0) -> list[Completion]:
    """What the requests come to, submitted in any order and some of them while others run."""
    order = [*range(len(batch))]
    random.Random(seed).shuffle(order)
    tickets: dict[int, Ticket] = {}
    while engine.has_work or order:
        for _ in range(4 if order else 0):
            tickets[at := order.pop()] = engine.submit(*batch[at])
        engine.step()
        engine.check_integrity()
    return [tickets[at].result() for at in range(len(batch))]


@cache
def expected(kernels: bool = False) -> list[Completion]:
    """By an engine that collects each step before it schedules the next."""
    return served(engine_of(kernels=kernels), requests(kernels))


def exact(completions: list[Completion]) -> list[object]:
    """All that no schedule may change."""
    return [
        (completion.logits, completion.logprobs, [_exact(sample) for sample in completion.samples])
        for completion in completions
    ]


def _exact(sample: Sample) -> object:
    return sample.tokens, sample.finish, sample.logprobs, sample.near_ties, sample.steps.allowed, sample.steps.draws


CONFIGS = {
    "room for all": (400, EngineConfig()),
    "chunks": (400, EngineConfig(token_budget=16)),
    "few at a time": (400, EngineConfig(max_sequences=3)),
    "little memory": (12, EngineConfig(token_budget=24)),
    "no overlap": (12, EngineConfig(token_budget=24, overlap=False)),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_requests_come_to_the_same_bits(lane: FakeLane, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pages, config = CONFIGS[name]
    reports: list[StepReport] = []
    preempt = Scheduler.preempt

    def watched(scheduler: Scheduler, *args: object) -> None:
        assert not scheduler.in_flight, "what is in flight loses nothing"
        preempt(scheduler, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Scheduler, "preempt", watched)
    with monkeypatch.context() as plain:
        plain.setattr("qpdsl.executor.engine.batch.staging.lane_to", lambda device: None)
        wanted = exact(expected())
    assert exact(served(engine_of(pages, config, reports), requests(), seed=pages)) == wanted
    assert lane.copies > 0 and lane.under_way == 0
    last = {report.model: report.preemptions for report in reports}
    assert (sum(last.values()) > 0) == (pages == 12)
