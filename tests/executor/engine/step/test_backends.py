"""The engine through the attention kernels' path, by their torch twins: the tokens of the CPU path, in any schedule."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import pytest
import torch

from qpdsl.executor.engine.memory.kv_cache import KVCache
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.executor.engine.step import backends as backends_module
from qpdsl.executor.engine.step.backends import KernelBackend, fixed_rows
from qpdsl.executor.engine.step_report import StepReport
from qpdsl.executor.kernels import paged_attention
from qpdsl.executor.requests.drawing import Drafting
from qpdsl.executor.requests.early_exit import EarlyExit
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import (
    GenerateRequest,
    LogProbRequest,
    ReadRequest,
    Sample,
    SamplingParams,
    TreeRequest,
)
from qpdsl.grammar.words import KVType
from tests.support.executor.models import VOCABULARY, engine_of, random_model, served
from tests.support.executor.replayed import record

SAMPLING = [SamplingParams(0.8), SamplingParams(1.0, top_p=0.8), SamplingParams(0.0), SamplingParams(1.3, top_k=9)]


@pytest.fixture(autouse=True)
def _twins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_attention, "_INTERPRETED", False)


@cache
def requests() -> tuple[GenerateRequest, ...]:
    """Prompts that share prefixes, the longest of them by enough for a cascade, and a fan-out."""
    rng = random.Random(3)
    stem = [rng.randrange(1, VOCABULARY) for _ in range(150)]
    batch = []
    for index in range(12):
        prompt = stem[: rng.choice([0, 33, 40, 150])] + [rng.randrange(1, VOCABULARY) for _ in range(rng.randint(1, 9))]
        keys = tuple(range(1000 * index, 1000 * index + (6 if index == 5 else 2)))
        batch.append(GenerateRequest(tuple(prompt), keys, SAMPLING[index % 4], rng.randint(1, 14)))
    return tuple(batch)


@cache
def model_of(name: str, kernels: bool, kv_type: KVType | None = None) -> PagedModel:
    # Heads 16 wide, which suit every type.
    wide = {} if kv_type is None else {"head_dim": 16}
    return PagedModel(random_model(name, **wide), kv_type=kv_type, kernels=kernels)


@cache
def expected(name: str, kv_type: KVType | None = None) -> list[tuple[Sample, ...]]:
    return served(engine_of(model_of(name, False, kv_type)), requests())


def tokens(results: list[tuple[Sample, ...]]) -> list[list[tuple[int, ...]]]:
    return [[sample.tokens for sample in samples] for samples in results]


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt_neox"])
def test_tokens_are_those_of_the_cpu_path(name: str) -> None:
    results = served(engine_of(model_of(name, True)), requests())
    assert tokens(results) == tokens(expected(name))
    for samples, expected_samples in zip(results, expected(name), strict=True):
        for a, b in zip(samples, expected_samples, strict=True):
            assert a.logprob == pytest.approx(b.logprob, abs=1e-3)


@pytest.mark.parametrize(
    ("pages", "config"),
    [
        (400, EngineConfig(token_budget=20)),
        (400, EngineConfig(max_sequences=3)),
        (13, EngineConfig(token_budget=37)),
        (400, EngineConfig(deterministic=True)),
    ],
    ids=["chunked", "three-at-a-time", "little-memory", "deterministic"],
)
def test_no_schedule_changes_them(pages: int, config: EngineConfig) -> None:
    reports: list[StepReport] = []
    engine = engine_of(model_of("llama", True), pages, config, reports.append)
    assert tokens(served(engine, requests())) == tokens(expected("llama"))
    if pages < 100:
        assert reports[-1].preemptions > 0


@pytest.mark.parametrize("kv_type", ["int8", "fp8"])
def test_fewer_bits_are_the_same_bits(kv_type: KVType) -> None:
    results = served(engine_of(model_of("llama", True, kv_type)), requests()[:4])
    assert tokens(results) == tokens(expected("llama", kv_type))[:4]


def test_two_models_share_memory() -> None:
    models = {"a": model_of("llama", True), "b": model_of("mistral", True)}
    engine = PagedEngine(kv_bytes=40 * models["a"].layout.page_bytes)
    for name, model in models.items():
        engine.add(name, model)
    tickets = {name: [engine.submit(name, request) for request in requests()] for name in models}
    while engine.has_work:
        engine.step()
        engine.check_integrity()
    for name, reference in (("a", "llama"), ("b", "mistral")):
        assert tokens([ticket.result().samples for ticket in tickets[name]]) == tokens(expected(reference))


def test_scores_are_read() -> None:
    rng = random.Random(7)
    text = tuple(rng.randrange(1, VOCABULARY) for _ in range(50))
    reads = [ReadRequest(text, (3, 20, 49), (5, 6, 7)), LogProbRequest(text[:20], text[20:30], (2, 9))]
    results = []
    for kernels in (False, True):
        engine = engine_of(model_of("llama", kernels), config=EngineConfig(token_budget=16))
        tickets = [engine.submit("m", request) for request in reads]
        while engine.has_work:
            engine.step()
        results.append([ticket.result() for ticket in tickets])
    for (a, b), (c, d) in [results]:
        assert torch.allclose(torch.tensor(a.logits), torch.tensor(c.logits), atol=1e-4)
        assert b.logprobs == pytest.approx(d.logprobs, abs=1e-4)


@pytest.mark.parametrize("budget", [1, 2, 3])
def test_a_tree_may_be_read_a_token_at_a_time(captured: list[KernelBackend], budget: int) -> None:
    """A token of it that comes alone reads its path, not the tokens in the places before it."""
    tree = TreeRequest((2, 8, 5, 9), ((40, 50), (29, 99), (7, 53)), (7,))
    found = []
    for kernels, config in ((False, EngineConfig()), (True, EngineConfig(token_budget=budget))):
        engine = engine_of(model_of("llama", kernels), config=config)
        ticket = engine.submit("m", tree)
        while engine.has_work:
            engine.step()
        found.append(ticket.result().logprobs)
    assert found[1] == pytest.approx(found[0], abs=1e-4)


def test_a_draw_may_leave_at_the_middle_layer() -> None:
    request = GenerateRequest((1, 2, 3), (0, 1, 2), SamplingParams(1.0), 8, exit=EarlyExit(0.2))
    both = [served(engine_of(model_of("llama", kernels)), (request,)) for kernels in (False, True)]
    assert tokens(both[0]) == tokens(both[1])


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[KernelBackend]:
    """The backends of the engines to come, which capture their steps."""
    backends: list[KernelBackend] = []

    def backend(model: PagedModel, cache: KVCache, fixed: int | None, graphs: bool) -> KernelBackend:
        backends.append(KernelBackend(model, cache, fixed, record if graphs else None))
        return backends[-1]

    monkeypatch.setattr(backends_module, "kernel_backend", backend)
    return backends


@pytest.mark.parametrize("rows", [None, 128])
def test_captured_steps_draw_and_read_the_same(captured: list[KernelBackend], rows: int | None) -> None:
    """Steps with chunks as well, of prompts and of texts whose steps a verifier reads."""
    rng = random.Random(7)
    text = tuple(rng.randrange(1, VOCABULARY) for _ in range(90))
    reads = [ReadRequest(text[:end], (end - 9, end - 1), (5, 6), cached=False) for end in range(60, 90, 3)]
    wanted = []
    for read in reads:
        engine = engine_of(model_of("llama", False))
        ticket = engine.submit("m", read)
        engine.step()
        wanted.append(torch.tensor(ticket.result().logits))
    config = EngineConfig(deterministic=rows is not None, token_budget=150)
    engine = engine_of(model_of("llama", True), config=config)
    for _ in range(4):
        tickets = [engine.submit("m", read) for read in reads]
        assert tokens(served(engine, requests())) == tokens(expected("llama"))
        for ticket, logits in zip(tickets, wanted, strict=True):
            assert torch.allclose(torch.tensor(ticket.result().logits), logits, atol=1e-4)
    graphs = captured[-1].graphs
    assert graphs is not None and graphs.refused == {}
    kinds = {sizes.longest_query > 1 for sizes in graphs._kept}
    assert kinds == {False, True} and graphs.replays > graphs.captures
    if rows is not None:
        # Of a fixed size, steps differ in how many sequences decode alone.
        assert {sizes.tokens for sizes in graphs._kept} == {rows}
        assert len({sizes._replace(decodes=0) for sizes in graphs._kept}) == 2


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_warm_engine_replays_its_first_decode_step(captured: list[KernelBackend], deterministic: bool) -> None:
    """And says what it does; what it tries leaves no trace in what is drawn."""
    engine = engine_of(model_of("llama", True), config=EngineConfig(max_sequences=20, deterministic=deterministic))
    told: list[tuple[str, str, int, int]] = []
    engine.warm_up(lambda *what: told.append(what))
    graphs = captured[-1].graphs
    assert graphs is not None
    rows = {128} if deterministic else {1, 2, 4, 8, 16, 24}
    assert {sizes.tokens for sizes in graphs._kept} == rows and graphs.captures == len(rows)
    assert told[0] == ("m", "capturing steps", 0, len(rows)) and told[-1][2] == told[-1][3]
    request = GenerateRequest((5, 6, 7), (1, 2, 3), SamplingParams(0.8), 9)
    (drawn,) = served(engine, (request,))
    assert tokens([drawn]) == tokens(served(engine_of(model_of("llama", False)), (request,)))
    # All steps but that of the prompt.
    assert graphs.replays == 8


def test_verifier_steps_are_replayed(captured: list[KernelBackend]) -> None:
    """Thirty texts, one after the other, of 39 to 97 tokens: of each of two sizes of a step, three run as they are."""
    model = model_of("llama", True)
    engine = engine_of(model)
    for end in range(40, 100, 2):
        ticket = engine.submit("m", ReadRequest(tuple(range(1, end)), (end - 2,), (3,), cached=False))
        while engine.has_work:
            engine.step()
        assert len(ticket.result().logits) == 1
    graphs = captured[-1].graphs
    assert graphs is not None and graphs.replays == 23


@pytest.mark.parametrize("branches", [1, 3])
def test_captured_steps_check_drafts(captured: list[KernelBackend], branches: int) -> None:
    """As rows of a chunk, and as a tree whose tokens are sequences of their own."""
    plain = GenerateRequest((5, 6, 7, 8, 9), (0, 1, 2), SamplingParams(0.7), 20)
    drafted = replace(plain, draft=Drafting("model", "draft", length=3, branches=branches, fixed=True))
    engine = PagedEngine(kv_bytes=800 * model_of("llama", True).layout.page_bytes)
    engine.add("draft", model_of("mistral", True))
    engine.add("m", model_of("llama", True))
    for _ in range(3):
        (samples,) = served(engine, (drafted,))
        assert tokens([samples]) == tokens(served(engine_of(model_of("llama", False)), (plain,)))
    graphs = captured[-1].graphs
    assert graphs is not None and any(sizes.path > 0 for sizes in graphs._kept) == (branches > 1)
    assert graphs.replays > 0


def test_steps_with_exits_run_as_they_are(captured: list[KernelBackend]) -> None:
    request = GenerateRequest((1, 2, 3), (0, 1, 2), SamplingParams(1.0), 12, exit=EarlyExit(0.2))
    assert tokens(served(engine_of(model_of("llama", True)), (request,))) == tokens(
        served(engine_of(model_of("llama", False)), (request,))
    )
    graphs = captured[-1].graphs
    assert graphs is not None and graphs.captures == 0


def test_a_mixture_of_experts_is_not_deterministic() -> None:
    model = PagedModel(random_model("llama"), kernels=True)
    model.mixes_rows = True
    with pytest.raises(EngineError, match="mixture of experts"):
        engine_of(model, config=EngineConfig(deterministic=True))


def test_deterministic_steps_have_room_for_every_sequence() -> None:
    assert [fixed_rows(count) for count in (1, 128, 129)] == [128, 128, 256]
