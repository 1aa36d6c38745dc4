"""On a device the next steps are launched before a step is told of: the same tokens, one wait a step, nothing lost."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from functools import cache
from itertools import accumulate
from typing import Any

import pytest
import torch

from qpdsl.executor.engine.launched_step import LaunchedStep
from qpdsl.executor.engine.memory.sequence import Chunk, Sequence
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.model_runner import ModelRunner
from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.executor.engine.scheduler import Scheduler
from qpdsl.executor.engine.step import backends, sampler
from qpdsl.executor.engine.step.sampler import DeviceSampler
from qpdsl.executor.engine.step_report import StepReport
from qpdsl.executor.kernels import paged_attention
from qpdsl.executor.kernels.data.token_draws import Drawn, TokenDraws
from qpdsl.executor.kernels.plain import head_twins
from qpdsl.executor.requests.drawing import Drafting
from qpdsl.executor.requests.early_exit import EarlyExit
from qpdsl.executor.requests.request import (
    Client,
    Completion,
    GenerateRequest,
    LogProbRequest,
    ReadRequest,
    Request,
    Sample,
    SamplingParams,
    TreeRequest,
)
from qpdsl.executor.requests.ticket import Ticket
from tests.support.executor.fake_device import fake_device
from tests.support.executor.host_reads import HostReads
from tests.support.executor.models import VOCABULARY, paged, random_model
from tests.support.executor.programs import arguments, run_all, shipped, texts
from tests.support.executor.rule_mask import RuleMask

SAMPLING = [SamplingParams(0.8), SamplingParams(1.0, top_p=0.8), SamplingParams(0.0), SamplingParams(1.3, top_k=9)]
ARCHITECTURES = {"writer": "llama", "reader": "gpt_neox"}


@pytest.fixture(autouse=True)
def _twins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_attention, "_INTERPRETED", False)


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
        for _ in range(min(4, len(order))):
            at = order.pop()
            tickets[at] = engine.submit(*batch[at])
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


# Pages in which they are in each other's way.
_LITTLE = 6
CONFIGS = {
    "room for all": (400, EngineConfig()),
    "chunks": (400, EngineConfig(token_budget=16)),
    "few at a time": (400, EngineConfig(max_sequences=3)),
    "little memory": (_LITTLE, EngineConfig(token_budget=24)),
    "no overlap": (_LITTLE, EngineConfig(token_budget=24, overlap=False)),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_requests_come_to_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = exact(expected())
    pages, config = CONFIGS[name]
    reports: list[StepReport] = []
    preempt = Scheduler.preempt

    def watched(scheduler: Scheduler, sequence: Sequence) -> None:
        assert not scheduler.in_flight, "what is in flight loses nothing"
        preempt(scheduler, sequence)

    monkeypatch.setattr(Scheduler, "preempt", watched)
    with fake_device() as lane:
        assert exact(served(engine_of(pages, config, reports), requests(), seed=pages)) == wanted
    assert lane.copies > 0 and lane.under_way == 0
    last = {report.model: report.preemptions for report in reports}
    assert (sum(last.values()) > 0) == (pages == _LITTLE)


def test_tokens_are_the_same_on_the_kernels_path() -> None:
    wanted = expected(kernels=True)
    with fake_device():
        found = served(engine_of(14, EngineConfig(token_budget=32), kernels=True), requests(True), seed=5)
    for mine, theirs in zip(found, wanted, strict=True):
        assert [sample.tokens for sample in mine.samples] == [sample.tokens for sample in theirs.samples]
        assert mine.logprobs == pytest.approx(theirs.logprobs, abs=1e-3)


class _Log:
    """The halves of steps, in their order, by model."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.halves: list[tuple[str, str]] = []
        launch, collect = ModelRunner.launch, ModelRunner.collect

        def launched(runner: ModelRunner, *args: Any) -> LaunchedStep:
            self.halves.append(("launch", runner.name))
            return launch(runner, *args)

        def collected(runner: ModelRunner, *args: Any) -> None:
            self.halves.append(("collect", runner.name))
            collect(runner, *args)

        monkeypatch.setattr(ModelRunner, "launch", launched)
        monkeypatch.setattr(ModelRunner, "collect", collected)

    @property
    def in_flight(self) -> list[int]:
        """Steps in flight after each half."""
        return [*accumulate(1 if half == "launch" else -1 for half, _ in self.halves)]


def writing(key: int, length: int, samples: int = 1) -> GenerateRequest:
    return GenerateRequest((5, 6, 7, key), tuple(range(samples)), SamplingParams(1.0), length)


def test_a_step_of_another_model_is_launched_before_one_is_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    log = _Log(monkeypatch)
    with fake_device():
        engine = engine_of()
        for name in ARCHITECTURES:
            engine.submit(name, writing(1, 30))
        while engine.has_work:
            engine.step()
    # They take turns, as whoever has been passed over goes first.
    collected = [name for half, name in log.halves if half == "collect"]
    assert collected[:40] == [*ARCHITECTURES] * 20
    before = [count + 1 for (half, _), count in zip(log.halves, log.in_flight, strict=True) if half == "collect"]
    assert before[:40] == [2] * 40, "the other's step is in flight while one is collected"


def test_no_step_is_launched_whose_turn_it_is_not_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the model that goes next is in flight, the device waits for its tokens, and not for another's step."""
    log = _Log(monkeypatch)
    with fake_device():
        engine = engine_of()
        engine.submit("reader", writing(1, 5))
        engine.submit("writer", replace(writing(1, 20), client=Client("urgent", urgency=1)))
        while engine.has_work:
            engine.step()
    assert [name for half, name in log.halves if half == "launch"] == ["writer"] * 20 + ["reader"] * 5


def test_the_next_step_is_launched_before_anybody_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    log = _Log(monkeypatch)
    with fake_device():
        engine = engine_of(reports=(reports := list[StepReport]()))
        told: list[tuple[int, int]] = []
        ticket = engine.submit("writer", writing(1, 4, samples=2))
        longer = engine.submit("writer", writing(2, 8))
        ticket.on_sample = lambda index, sample: told.append((index, len(log.halves)))
        engine.step()
        assert log.halves == [("launch", "writer"), ("collect", "writer"), ("launch", "writer")] and len(reports) == 1
        while engine.has_work:
            engine.step()
    # The fifth launch is under way when the fourth step's samples are told of.
    assert told == [(0, 9), (1, 9)] and longer.done and max(log.in_flight) == 1


def test_on_a_cpu_and_without_overlap_nothing_is_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    log = _Log(monkeypatch)
    for overlap in (True, False):
        engine = engine_of(config=EngineConfig(overlap=overlap))
        if not overlap:
            with fake_device():
                engine = engine_of(config=EngineConfig(overlap=False))
        engine.submit("writer", writing(1, 3))
        while engine.has_work:
            engine.step()
            assert log.in_flight[-1] == 0 and max(log.in_flight) == 1


@pytest.mark.parametrize("sampled", [True, False])
def test_what_is_given_up_in_flight_is_told_of_nothing_and_holds_nothing(sampled: bool) -> None:
    with fake_device():
        engine = engine_of()
        alone = served_alone(writing(2, 9))
        request: Request = writing(1, 2, samples=3) if sampled else ReadRequest(tuple(range(1, 40)), (3, 38), (1,))
        ticket, other = engine.submit("writer", request), engine.submit("writer", writing(2, 9))
        told: list[int] = []
        ticket.on_sample = lambda index, sample: told.append(index)
        if sampled:
            engine.step()
        assert engine.has_work
        held = engine.busy("writer")
        ticket.cancel()
        # The step in flight still writes to its pages.
        assert engine.busy("writer") == held or not sampled
        while engine.has_work:
            engine.step()
            engine.check_integrity()
        assert not ticket.done and told == [] and engine.busy("writer") == 0
        assert other.result().samples == alone.samples


def test_a_callback_that_raises_keeps_no_other_from_being_told() -> None:
    with fake_device():
        engine = engine_of()
        ticket, other = engine.submit("writer", writing(1, 4)), engine.submit("writer", writing(2, 4))

        def refuse(index: int, sample: Sample) -> None:
            raise ValueError("not this one")

        ticket.on_sample = refuse
        with pytest.raises(ValueError, match="not this one"):
            while engine.has_work:
                engine.step()
        assert engine.has_work and not other.done
        while engine.has_work:
            engine.step()
            engine.check_integrity()
        assert other.result().samples == served_alone(writing(2, 4)).samples


def served_alone(request: GenerateRequest) -> Completion:
    engine = engine_of()
    ticket = engine.submit("writer", request)
    while engine.has_work:
        engine.step()
    return ticket.result()


def test_a_model_may_come_while_a_step_is_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    log = _Log(monkeypatch)
    with fake_device():
        engine = engine_of(60)
        ticket = engine.submit("writer", writing(1, 9))
        engine.step()
        assert log.in_flight[-1] == 1
        engine.add("third", models()["reader"])
        assert log.in_flight[-1] == 0, "it may need the memory of what runs"
        later = engine.submit("third", writing(1, 9))
        while engine.has_work:
            engine.step()
            engine.check_integrity()
        assert ticket.result().samples == served_alone(writing(1, 9)).samples and later.done


def test_the_most_urgent_waits_for_memory_that_is_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    blocked: list[str] = []
    schedule = Scheduler.schedule

    def noted(scheduler: Scheduler) -> list[Chunk]:
        chunks = schedule(scheduler)
        if scheduler.blocked:
            blocked.append("blocked")
            assert all(sequence.pages for sequence in scheduler.running), "it does not run without a page"
        return chunks

    monkeypatch.setattr(Scheduler, "schedule", noted)
    prompt = tuple(range(1, 41))
    urgent = GenerateRequest(prompt, (1,), SamplingParams(1.0), 4, client=Client("urgent", urgency=1))
    with fake_device():
        engine = engine_of(_LITTLE)
        others = [
            engine.submit("writer", GenerateRequest((key, *prompt), (key,), SamplingParams(1.0), 50))
            for key in range(8)
        ]
        for _ in range(12):
            engine.step()
        ticket = engine.submit("reader", urgent)
        steps = 0
        while not ticket.done:
            engine.step()
            engine.check_integrity()
            steps += 1
        while engine.has_work:
            engine.step()
    # What is in flight when it comes, its own four, and those in which it gets no memory yet.
    assert blocked and steps <= 8 and all(other.done for other in others)


def test_seconds_of_overlapping_steps_are_counted_once() -> None:
    reports: list[StepReport] = []
    with fake_device():
        engine = engine_of(reports=reports)
        tickets = [engine.submit(name, writing(1, 20)) for name in ARCHITECTURES]
        start = time.perf_counter()
        while engine.has_work:
            engine.step()
        taken = time.perf_counter() - start
    total = sum(report.seconds for report in reports)
    assert 0 < total <= taken
    assert sum(ticket.seconds for ticket in tickets) == pytest.approx(total)


def likeliest(
    logits: torch.Tensor, draws: TokenDraws, bits: torch.Tensor | None, lines: torch.Tensor | None, filters: object
) -> Drawn:
    """Stands in for the kernel that draws from logits: the likeliest of the ids that may come."""
    logits = logits.index_select(0, draws.rows)
    if bits is not None and lines is not None:
        logits = logits.masked_fill(~head_twins.allowed(bits, lines, 0, VOCABULARY), float("-inf"))
    tokens = logits.argmax(dim=-1)
    return tokens, torch.zeros(len(tokens)), torch.ones(len(tokens))


def test_a_step_waits_for_the_device_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By whatever makes a host wait: a mark, or reading what lies on the device."""
    # Draws as a device does, but for the kernel.
    monkeypatch.setattr(backends, "on_device", lambda tensor: True)
    monkeypatch.setattr(backends, "_device_sampler", lambda staging: DeviceSampler(staging, likeliest))
    reports: list[StepReport] = []
    batch = [request for _, request in requests(True) if isinstance(request, GenerateRequest) and not request.exit]
    reads = [request for _, request in requests(True) if not isinstance(request, GenerateRequest)]
    with fake_device() as lane:
        engine = engine_of(reports=reports, kernels=True)
        for request in (*batch[:5], *reads[:4]):
            engine.submit("writer", request)
        before = lane.waits
        with HostReads() as reads_of_host:
            while engine.has_work:
                engine.step()
    assert lane.waits - before == len(reports) > 3
    assert dict(reads_of_host.lines) == {}


def test_a_line_that_reads_what_lies_on_the_device_is_seen() -> None:
    logits = torch.randn(3, VOCABULARY)
    with HostReads([logits]) as reads_of_host:
        sampler.sample(logits, SAMPLING[:3], [1, 2, 3], [0, 0, 0])
    kinds = {line.split()[1] for line in reads_of_host.lines}
    assert {"tensor", "nonzero"} <= kinds and all("step/sampler.py:" in line for line in reads_of_host.lines)


@pytest.mark.parametrize("name", ["best_of_n", "beam_search"])
def test_programs_come_to_the_same(name: str) -> None:
    """In whatever order they come, as many at once as there are."""
    plan, size = shipped(name), {"best_of_n": {"n": 4}, "beam_search": {"width": 2, "expand": 2, "depth": 4}}[name]
    rows = [arguments(plan, problem=text, **size) for text in texts(3)]
    wanted = run_all(plan, rows)
    with fake_device() as lane:
        found = run_all(plan, rows[::-1], EngineConfig(max_sequences=5, token_budget=48))[::-1]
    assert all(result.error is None and result.value for result in wanted)
    assert [(result.value, result.rows) for result in found] == [(result.value, result.rows) for result in wanted]
    assert lane.waits > 10
