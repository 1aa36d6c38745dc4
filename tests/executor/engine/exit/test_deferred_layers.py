"""Layers that are put off change no bit: a sample with a deferred exit is the one for which all layers run."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from qpdsl.executor.engine.exit import exit_steps
from qpdsl.executor.engine.memory.residuals import Residuals
from qpdsl.executor.engine.model.native_stack import NativeStack
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.executor.engine.step_report import StepReport
from qpdsl.executor.kernels.llvm.compile import vector_width
from qpdsl.executor.requests.drawing import Drafting
from qpdsl.executor.requests.early_exit import EarlyExit
from qpdsl.executor.requests.request import GenerateRequest, Sample, SamplingParams
from tests.support.executor.models import VOCABULARY, engine_of, paged, served
from tests.support.executor.rule_mask import RuleMask
from tests.support.executor.threads import threads

pytestmark = pytest.mark.skipif(not vector_width(), reason="this machine has no vectors")

LAYERS = 5
SAMPLINGS = (
    SamplingParams(0.0),
    SamplingParams(1.0),
    SamplingParams(0.6),
    SamplingParams(1.2, top_k=20),
    SamplingParams(0.9, top_p=0.8),
)


class StopAfter:
    """An engine `Watch` that ends a sample at the first token of a class."""

    def push(self, token: int) -> bool:
        return token % 23 == 0


@cache
def model() -> PagedModel:
    return paged("llama", num_hidden_layers=LAYERS)


def some(seed: int, count: int) -> tuple[GenerateRequest, ...]:
    """Requests of all kinds, most of them with an exit, whose prompts share beginnings."""
    rng = random.Random(seed)
    stem = [rng.randrange(1, VOCABULARY) for _ in range(40)]
    found = []
    for number in range(count):
        prompt = stem[: rng.choice([0, 16, 33])] + [rng.randrange(1, VOCABULARY) for _ in range(rng.randint(1, 25))]
        keys = tuple(rng.getrandbits(64) for _ in range(rng.choice([1, 1, 1, 3])))
        params = rng.choice(SAMPLINGS)
        leave = None
        if rng.random() < 0.85:
            certify = rng.uniform(0, 2) if not params.filtered and rng.random() < 0.2 else None
            rerank = rng.randint(1, 12) if rng.random() < 0.25 else None
            margin = rng.choice([0.0, 1.1, rng.uniform(0, 0.3), rng.uniform(0, 0.3)])
            leave = EarlyExit(margin, rng.randrange(1, LAYERS), None, rerank, certify)
        masked = rng.random() < 0.4
        request = GenerateRequest(
            tuple(prompt),
            keys,
            params,
            rng.randint(1, 40),
            frozenset({7}) if number % 4 == 0 and not masked else frozenset(),
            watch=(lambda index: StopAfter()) if rng.random() < 0.2 else None,
            mask=RuleMask if masked else None,
            exit=leave,
            priority=int(rng.random() < 0.1),  # type: ignore[arg-type]
            jump=masked and rng.random() < 0.5,
            sparse=rng.random() < 0.5,
            draft=Drafting("ngram", length=3, fixed=True) if rng.random() < 0.1 else None,
        )
        found.append(request)
    return tuple(found)


def deferring(requests: tuple[GenerateRequest, ...]) -> tuple[GenerateRequest, ...]:
    return tuple(
        request if request.exit is None else replace(request, exit=replace(request.exit, deferred=True))
        for request in requests
    )


def told(results: list[tuple[Sample, ...]]) -> list[list[tuple[Any, ...]]]:
    """All that a user can see of samples, and where their tokens were drawn."""
    return [
        [
            (
                *(sample.tokens, sample.finish, sample.logprob, sample.logprobs, sample.near_ties),
                *(sample.steps.draws, sample.steps.exits, sample.steps.refined, sample.steps.allowed),
            )
            for sample in row
        ]
        for row in results
    ]


@cache
def plain(seed: int, count: int) -> list[list[tuple[Any, ...]]]:
    """Those of requests for which all layers run."""
    return told(served(engine_of(model()), some(seed, count)))


@pytest.mark.parametrize(
    ("pages", "config", "used"),
    [
        (400, EngineConfig(), 1),
        (400, EngineConfig(token_budget=20), 1),
        (400, EngineConfig(max_sequences=7), 1),
        (400, EngineConfig(max_sequences=1), 1),
        (30, EngineConfig(), 1),
        (8, EngineConfig(token_budget=37), 1),
        (400, EngineConfig(), 2),
    ],
    ids=["batch", "chunked", "seven", "alone", "little-memory", "least-memory", "two-threads"],
)
def test_deferred_samples_are_the_plain_ones(pages: int, config: EngineConfig, used: int) -> None:
    reports: list[StepReport] = []
    count = 48 if used == 1 and config.max_sequences > 1 else 12
    requests = deferring(some(1, 48))
    with threads(used):
        engine = engine_of(model(), pages, config=config, on_step=reports.append)
        assert told(served(engine, requests[:count])) == plain(1, 48)[:count]
        # And some once more, over what is cached.
        assert told(served(engine, requests[:5])) == plain(1, 48)[:5]
    if pages < 100:
        assert reports[-1].preemptions > 0


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exit_steps, "MAX_LATE", 5)
    engine = engine_of(model())
    tickets = [engine.submit("m", request) for request in deferring(some(1, 48))]
    most = 0
    while engine.has_work:
        engine.step()
        engine.check_integrity()
        most = max(most, *(sequence.late for sequence in engine.runner("m").scheduler.running), 0)
    assert told([ticket.result().samples for ticket in tickets]) == plain(1, 48)
    # A chunk of tokens that are forced may come at once.
    assert 0 < most < 5


@pytest.mark.parametrize("pages", [400, 8])
def test_what_waits_lies_in_the_kv_memory_and_gives_way_to_pages(pages: int, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = list[bool]()
    give_back = Residuals.give_back
    monkeypatch.setattr(Residuals, "give_back", lambda self: moved.append(give_back(self)) or moved[-1])
    engine = engine_of(model(), pages)
    runner = engine.runner("m")
    residuals, arena = runner.scheduler.memory.residuals, runner.scheduler.memory.pool.arena
    tickets = [engine.submit("m", request) for request in deferring(some(1, 48))]
    kept = 0
    while engine.has_work:
        engine.step()
        engine.check_integrity()
        arena.check_integrity()
        kept = max(kept, residuals.leased_bytes)
        assert residuals.leased_bytes + runner.scheduler.memory.pool.leased_bytes <= arena.slabs * arena.slab_bytes
    assert told([ticket.result().samples for ticket in tickets]) == plain(1, 48)
    assert kept > 0 and residuals.leased_bytes == 0
    assert any(moved) == (pages == 8)


def test_a_sample_that_needs_all_memory_gets_what_its_late_tokens_took() -> None:
    engine = engine_of(model(), 6)
    memory = engine.runner("m").scheduler.memory
    room = memory.capacity * memory.page_size - 5
    request = GenerateRequest((5, 17, 80, 3, 44), (1,), SamplingParams(1.0), room, exit=EarlyExit(0.02, 2))
    (samples,) = served(engine, deferring((request,)))
    assert told([samples]) == told(served(engine_of(model()), (request,)))
    assert len(samples[0].tokens) == room and samples[0].steps.exits > 20


def test_late_tokens_are_in_no_cached_prefix() -> None:
    request = GenerateRequest((5, 17, 80, 3, 44), (1, 2, 3), SamplingParams(1.0), 60, exit=EarlyExit(0.02, 2))
    engine = engine_of(model())
    (samples,) = served(engine, deferring((request,)))
    assert sum(sample.steps.exits for sample in samples) > 20
    # What goes on from them finds whatever is cached of them.
    more = tuple(GenerateRequest(request.prompt + sample.tokens, (9,), SamplingParams(0.0), 10) for sample in samples)
    assert told(served(engine, more)) == told(served(engine_of(model()), more))


def test_layers_behind_the_exit_run_only_for_what_is_refined(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = [0] * LAYERS
    run = NativeStack.run

    def counted(
        stack: NativeStack, batch: Any, cache: Any, residual: torch.Tensor, first: int, depth: int, *rest: Any
    ) -> torch.Tensor:
        for layer in range(first, depth):
            ran[layer] += len(residual)
        return run(stack, batch, cache, residual, first, depth, *rest)

    monkeypatch.setattr(NativeStack, "run", counted)
    prompt, tokens = (5, 17, 80, 3), 30
    for margin, refined in ((0.0, False), (1.1, True)):
        ran[:] = [0] * LAYERS
        request = GenerateRequest(prompt, (1,), SamplingParams(1.0), tokens, exit=EarlyExit(margin, 2, deferred=True))
        ((sample,),) = served(engine_of(model()), (request,))
        drawn = len(prompt) + tokens - 1
        assert ran == [drawn, drawn, *[drawn if refined else len(prompt)] * (LAYERS - 2)]
        steps = sample.steps
        assert (steps.exits, steps.refined) == ((0, tokens) if refined else (tokens, 0))
        assert (steps.late, steps.skipped) == ((0, 0) if refined else (0, (tokens - 1) * (LAYERS - 2)))


def test_counts_add_up() -> None:
    (samples,) = served(
        engine_of(model()),
        (GenerateRequest((5, 17), tuple(range(12)), SamplingParams(1.0), 40, exit=EarlyExit(0.05, 2, deferred=True)),),
    )
    for sample in samples:
        steps = sample.steps
        assert steps.exits + steps.refined == steps.draws == 40
        spared, rest = divmod(steps.skipped, LAYERS - 2)
        # The first token comes from the prompt, the last is not computed.
        assert rest == 0 and steps.late + spared <= steps.exits
    assert sum(sample.steps.late for sample in samples) > 0


def test_a_request_that_is_given_up_leaves_nothing() -> None:
    engine = engine_of(model())
    request = GenerateRequest((5, 17), (1, 2), SamplingParams(1.0), 200, exit=EarlyExit(0.0, 2, deferred=True))
    ticket, other = engine.submit("m", request), engine.submit("m", replace(request, max_tokens=20))
    for _ in range(9):
        engine.step()
    ticket.cancel()
    while engine.has_work:
        engine.step()
        engine.check_integrity()
    assert len(other.result().samples) == 2


def test_models_whose_layers_do_not_run_in_part_run_them_all() -> None:
    modules = paged("llama", native=False, num_hidden_layers=LAYERS)
    assert not modules.runs_in_part
    requests = some(3, 12)
    assert told(served(engine_of(modules), deferring(requests))) == told(served(engine_of(modules), requests))


def test_two_models_on_little_memory() -> None:
    engine = PagedEngine(EngineConfig(token_budget=64), kv_bytes=40 * model().layout.page_bytes)
    requests = some(4, 16)
    for name in ("a", "b"):
        engine.add(name, model())
    tickets = {name: [engine.submit(name, request) for request in deferring(requests)] for name in ("a", "b")}
    while engine.has_work:
        engine.step()
        engine.check_integrity()
    for own in tickets.values():
        assert told([ticket.result().samples for ticket in own]) == plain(4, 16)
