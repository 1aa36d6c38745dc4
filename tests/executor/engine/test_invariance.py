"""A sample's tokens are its own: no batch, neighbour, chunking, fork, cache or preemption changes them."""

from __future__ import annotations

import asyncio
import random
from functools import cache

import pytest
import torch

from qpdsl import zoo
from qpdsl.executor.engine.model.heads import LogitHead
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.executor.engine.step_report import StepReport
from qpdsl.executor.models.load import load
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import GenerateRequest, ReadRequest, Sample, SamplingParams
from tests.support.executor.models import VOCABULARY, engine_of, paged, random_model, served

SAMPLING = [
    SamplingParams(0.8),
    SamplingParams(1.3, top_k=12),
    SamplingParams(1.0, top_p=0.8),
    SamplingParams(1.5, min_p=0.05, top_p=0.95),
    SamplingParams(0.0),
]


@cache
def requests() -> tuple[GenerateRequest, ...]:
    """40 samples in 20 requests, with prompts that share prefixes."""
    rng = random.Random(3)
    stem = [rng.randrange(1, VOCABULARY) for _ in range(40)]
    batch = []
    for index in range(20):
        prompt = stem[: rng.choice([0, 16, 33, 40])] + [rng.randrange(1, VOCABULARY) for _ in range(rng.randint(1, 30))]
        keys = (1000 + 2 * index, (1 << 63) + index)
        batch.append(GenerateRequest(tuple(prompt), keys, SAMPLING[index % 5], rng.randint(1, 24)))
    return tuple(batch)


@cache
def alone(native: bool = True) -> list[tuple[Sample, ...]]:
    """Each sample computed on an engine of its own, with nothing cached."""
    model = paged("llama", native=native)
    results = []
    for request in requests():
        samples: list[Sample] = []
        for key in request.keys:
            engine = PagedEngine()
            engine.add("m", model)
            single = GenerateRequest(request.prompt, (key,), request.sampling, request.max_tokens)
            samples += served(engine, (single,))[0]
        results.append(tuple(samples))
    return results


@pytest.mark.parametrize(
    ("pages", "config", "native"),
    [
        (400, EngineConfig(), True),
        (400, EngineConfig(token_budget=20), True),
        (400, EngineConfig(max_sequences=3), True),
        (16, EngineConfig(), True),
        (8, EngineConfig(token_budget=37), True),
        (400, EngineConfig(), False),
        (8, EngineConfig(token_budget=37), False),
    ],
    ids=["batch-40", "chunked", "three-at-a-time", "little-memory", "least-memory", "torch", "torch-least-memory"],
)
def test_tokens_are_those_of_the_sample_alone(pages: int, config: EngineConfig, native: bool) -> None:
    reports: list[StepReport] = []
    engine = engine_of(paged("llama", native=native), pages, config=config, on_step=reports.append)
    assert served(engine, requests()) == alone(native)
    if pages < 100:
        assert reports[-1].preemptions > 0


def test_tokens_are_the_same_from_a_warm_cache() -> None:
    engine = PagedEngine()
    engine.add("m", paged("llama"))
    assert served(engine, requests()) == alone()
    assert served(engine, requests()[::-1]) == alone()[::-1]


def test_a_fan_out_prefills_its_prompt_once_and_shares_its_pages() -> None:
    reports: list[StepReport] = []
    engine = PagedEngine(on_step=reports.append)
    engine.add("m", paged("llama"))
    prompt = tuple(range(1, 91))
    engine.submit("m", GenerateRequest(prompt, tuple(range(64)), SamplingParams(1.0), 2))
    engine.step()
    assert reports[0].prefill_tokens == 90
    engine.step()
    # Five whole pages of 16 shared by all, and a last one of its own for each sample.
    assert reports[1].decode_tokens == 64 and reports[1].pages_held <= 5 + 64


def test_different_keys_give_different_samples() -> None:
    engine = PagedEngine()
    engine.add("m", paged("llama"))
    (samples,) = served(engine, (GenerateRequest((1, 2, 3), tuple(range(20)), SamplingParams(1.0), 12),))
    assert len({sample.tokens for sample in samples}) > 15


def test_a_read_that_is_preempted_half_way_reads_each_position_once() -> None:
    rng = random.Random(11)
    writer = GenerateRequest(tuple(rng.randrange(1, VOCABULARY) for _ in range(16)), (1,), SamplingParams(1.0), 60)
    tokens = tuple(rng.randrange(1, VOCABULARY) for _ in range(90))
    read = ReadRequest(tokens, (3, 33, 89), (3, 4))
    results = []
    for pages in (400, 6):
        reports: list[StepReport] = []
        engine = engine_of(paged("llama"), pages, config=EngineConfig(token_budget=8), on_step=reports.append)
        tickets = [engine.submit("m", request) for request in (writer, read)]
        while engine.has_work:
            engine.step()
            engine.check_integrity()
        results.append([ticket.result() for ticket in tickets])
    assert reports[-1].preemptions > 0
    assert [result.samples for result in results[0]] == [result.samples for result in results[1]]
    assert results[0][1].logits == results[1][1].logits


def test_a_fan_out_wider_than_the_batch_runs_in_portions_with_the_same_tokens() -> None:
    wide = GenerateRequest(tuple(range(1, 40)), tuple(range(50)), SamplingParams(1.0), 6)
    results = []
    for limit in (128, 7):
        reports: list[StepReport] = []
        engine = PagedEngine(EngineConfig(max_sequences=limit), reports.append)
        engine.add("m", paged("llama"))
        results.append(served(engine, (wide,)))
        assert max(report.decode_tokens for report in reports) <= limit
    assert results[0] == results[1]


def test_the_same_read_twice_ends_and_reads_the_same() -> None:
    engine = PagedEngine()
    engine.add("m", paged("llama"))
    read = ReadRequest(tuple(range(1, 41)), (20, 39), (3,))
    results = []
    for _ in range(2):
        ticket = engine.submit("m", read)
        for _ in range(10):
            if engine.has_work:
                engine.step()
        results.append(ticket.result())
    assert results[0].logits == results[1].logits
    assert results[1].cached == 20


def one_token(prompt: tuple[int, ...], key: int) -> GenerateRequest:
    return GenerateRequest(prompt, (key,), SamplingParams(1.0), 1)


def test_a_sample_that_fits_alone_is_not_refused_for_what_its_sibling_left() -> None:
    engine = engine_of(paged("llama"), pages=2)
    prompt = tuple(range(1, 21))
    (alone,) = served(engine, (GenerateRequest(prompt, (0,), SamplingParams(1.0), 10),))
    ends = {key: served(engine, (one_token(prompt, key),))[0][0].tokens[0] for key in range(1, 9)}
    sibling = next(key for key, token in ends.items() if token not in alone[0].tokens)
    fresh = engine_of(paged("llama"), pages=2)
    eos = frozenset({ends[sibling]})
    (both,) = served(fresh, (GenerateRequest(prompt, (sibling, 0), SamplingParams(1.0), 10, eos),))
    assert both[0].finish == "eos" and both[1].tokens == alone[0].tokens


def test_cancelling_a_task_frees_its_pages_and_the_others_go_on() -> None:
    engine = PagedEngine()
    engine.add("m", paged("llama"))

    async def ask(request: GenerateRequest) -> tuple[Sample, ...]:
        return (await engine.submit("m", request)).samples

    async def main() -> list[tuple[Sample, ...]]:
        driver = asyncio.create_task(engine.drive())
        tasks = [asyncio.create_task(ask(request)) for request in requests()[:8]]
        doomed = asyncio.create_task(ask(GenerateRequest((1, 2, 3), (0, 1), SamplingParams(1.0), 200)))
        await asyncio.sleep(0.01)
        doomed.cancel()
        results = await asyncio.gather(*tasks)
        driver.cancel()
        return results

    assert asyncio.run(main()) == alone()[:8]
    assert not engine.has_work
    engine.check_integrity()


def test_logits_that_are_no_numbers_fail_the_request_and_not_the_engine() -> None:
    broken = random_model("llama")
    with torch.no_grad():
        broken.lm_head.weight[5] = float("nan")
    # With this head from the start it would be refused when it is loaded.
    model = paged("llama")
    model.head = LogitHead(broken)
    model.head.pack()
    engine = PagedEngine()
    engine.add("m", model)
    tickets = [
        engine.submit("m", GenerateRequest((1, 2, 3), (0, 1), SamplingParams(1.0), 5)),
        engine.submit("m", ReadRequest((1, 2, 3), (2,), (5,))),
        engine.submit("m", ReadRequest((1, 2, 3), (2,), (6,))),
    ]
    while engine.has_work:
        engine.step()
        engine.check_integrity()
    for ticket in tickets[:2]:
        with pytest.raises(EngineError, match="not finite"):
            ticket.result()
    assert len(tickets[2].result().logits) == 1


@cache
def built_in(name: str) -> PagedModel:
    return load(name, zoo.path(name), "cpu", None).paged


@pytest.mark.parametrize("name", ["zoo/counting", "zoo/counting-mini", "zoo/counting-prm"])
def test_the_built_in_models_score_the_same_bits_in_every_company(name: str) -> None:
    """Log-probabilities, not tokens alone: a sum taken in another order shows there first."""
    rng = random.Random(13)
    model = built_in(name)
    stem = [rng.randrange(5, 700) for _ in range(90)]
    batch = []
    for index in range(20):
        prompt = stem[: rng.choice([0, 16, 50, 90])] + [rng.randrange(5, 700) for _ in range(rng.randint(1, 140))]
        batch.append(GenerateRequest(tuple(prompt), (index,), SAMPLING[index % 5], rng.randint(1, 12)))
    results = []
    for pages, config in (
        (2000, EngineConfig(max_sequences=1)),
        (2000, EngineConfig(max_sequences=3)),
        (2000, EngineConfig(token_budget=53)),
        (2000, EngineConfig()),
        (40, EngineConfig()),
    ):
        results.append(served(engine_of(model, pages, config), tuple(batch)))
    assert all(result == results[0] for result in results[1:])


@pytest.mark.parametrize("native", [True, False])
def test_the_default_type_of_torch_changes_nothing(native: bool) -> None:
    """A user's function may load a model of its own meanwhile, and transformers sets the type while it does."""
    model, some = paged("llama", native=native), requests()[:6]
    engine = PagedEngine()
    engine.add("m", model)
    expected = served(engine, some)
    torch.set_default_dtype(torch.bfloat16)
    try:
        engine = PagedEngine()
        engine.add("m", model)
        assert served(engine, some) == expected
    finally:
        torch.set_default_dtype(torch.float32)
