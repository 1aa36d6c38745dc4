"""Which sequences run, wait and are preempted: none waits for ever, and no tokens change by it."""

from __future__ import annotations

import random
from functools import cache

import pytest

from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.executor.engine.step_report import StepReport
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import Completion, GenerateRequest, Priority, ReadRequest, Request, SamplingParams
from qpdsl.executor.requests.ticket import Ticket
from tests.support.executor.models import VOCABULARY, engine_of, paged

SAMPLING = SamplingParams(1.0)


def tokens(seed: int, count: int) -> tuple[int, ...]:
    rng = random.Random(seed)
    return tuple(rng.randrange(1, VOCABULARY) for _ in range(count))


def generate(seed: int, count: int, length: int, samples: int = 1, priority: Priority = 0) -> GenerateRequest:
    keys = tuple(range(100 * seed, 100 * seed + samples))
    return GenerateRequest(tokens(seed, count), keys, SAMPLING, length, priority=priority)


@cache
def models() -> dict[str, PagedModel]:
    """Two models whose pages differ in size."""
    return {"small": paged("llama"), "large": paged("gpt_neox", seed=1)}


def run(engine: PagedEngine) -> None:
    for _ in range(5000):
        if not engine.has_work:
            return
        engine.step()
        engine.check_integrity()
    raise AssertionError("the engine does not come to an end")


def outcome(ticket: Ticket) -> tuple[object, ...]:
    """What a request gave; what was cached for it is the schedule's affair."""
    done: Completion = ticket.result()
    return done.samples, done.logits, done.logprobs


@cache
def mixed() -> tuple[tuple[str, Request], ...]:
    """Requests to both models: fan-outs, texts that grow out of each other, and scores over them."""
    submissions: list[tuple[str, Request]] = []
    for index in range(12):
        name = ("small", "large")[index % 2]
        stem = tokens(index // 4, 40)
        priority: Priority = 1 if index % 5 == 4 else 0
        keys = (index, 1000 + index, 2000 + index)
        more = tokens(90 + index, 5 + 3 * index)
        submissions.append((name, GenerateRequest(stem + more, keys, SAMPLING, 4 + 3 * index, priority=priority)))
        submissions.append(
            (("large", "small")[index % 2], ReadRequest(stem + more, (39, 43, len(stem + more) - 1), (5, 17)))
        )
    return tuple(submissions)


@cache
def alone() -> list[tuple[object, ...]]:
    """Each request on an engine of its own."""
    results = []
    for name, request in mixed():
        engine = PagedEngine()
        engine.add(name, models()[name])
        ticket = engine.submit(name, request)
        run(engine)
        results.append(outcome(ticket))
    return results


@pytest.mark.parametrize("order", ["as-they-come", "backwards"])
@pytest.mark.parametrize("budget", [36, 150, 1000])
@pytest.mark.parametrize("config", [EngineConfig(), EngineConfig(5, 23)], ids=["wide", "narrow"])
def test_two_models_in_one_budget_give_what_each_request_gives_alone(
    order: str, budget: int, config: EngineConfig
) -> None:
    reports: list[StepReport] = []
    page = models()["large"].layout.page_bytes
    engine = PagedEngine(config, reports.append, budget * page)
    for name, model in models().items():
        engine.add(name, model)
    numbers = list(range(len(mixed())))[:: 1 if order == "as-they-come" else -1]
    for _ in range(2):
        tickets = {index: engine.submit(*mixed()[index]) for index in numbers}
        run(engine)
        assert [outcome(tickets[index]) for index in range(len(numbers))] == alone()
    last = {report.model: report for report in reports}
    if budget == 36:
        assert sum(report.evictions for report in last.values()) > 50
        assert sum(report.preemptions for report in last.values()) > 0
    if budget == 1000:
        assert all(report.evictions == 0 and report.cached_tokens > 200 for report in last.values())


def test_the_oldest_of_all_is_never_slowed_by_another_model() -> None:
    """Each model wants almost all memory, and neither could go on if both kept what they have."""
    reports: list[StepReport] = []
    engine = PagedEngine(None, reports.append, 12 * models()["large"].layout.page_bytes)
    for name, model in models().items():
        engine.add(name, model)
    oldest = engine.submit("small", generate(1, 60, 100))
    others = [engine.submit(name, generate(2 + at, 60, 60)) for at, name in enumerate(("large", "small", "large"))]
    while not oldest.done:
        engine.step()
        engine.check_integrity()
    assert sum(report.model == "small" for report in reports) == 100
    run(engine)
    assert all(ticket.done for ticket in others)
    assert sum(report.preemptions for report in {report.model: report for report in reports}.values()) > 0


def test_a_model_that_comes_while_another_holds_all_memory_gets_its_share() -> None:
    small = models()["small"]
    engine = PagedEngine(None, None, 12 * small.layout.page_bytes)
    engine.add("small", small)
    first = engine.submit("small", generate(1, 90, 60, samples=2))
    for _ in range(5):
        engine.step()
    engine.add("large", small)
    second = engine.submit("large", generate(2, 60, 30))
    run(engine)
    fresh = engine_of(small)
    expected = [fresh.submit("m", request) for request in (generate(1, 90, 60, samples=2), generate(2, 60, 30))]
    run(fresh)
    assert [outcome(first), outcome(second)] == [outcome(ticket) for ticket in expected]


def test_a_long_prompt_is_not_starved_by_a_flood_of_short_ones() -> None:
    engine = engine_of(paged("llama"), 400, EngineConfig(max_sequences=8, token_budget=24))
    for index in range(8):
        engine.submit("m", generate(100 + index, 10, 12))
    long = engine.submit("m", generate(1, 200, 4))
    steps = 0
    while not long.done:
        engine.submit("m", generate(200 + steps, 10, 12))
        engine.step()
        steps += 1
        assert steps < 80
    assert engine.has_work


def test_a_hog_of_memory_is_not_starved_by_a_flood_of_small_ones_and_does_not_starve_them() -> None:
    engine = engine_of(paged("llama"), 14, EngineConfig(max_sequences=8))
    early = [engine.submit("m", generate(100 + index, 20, 12)) for index in range(8)]
    hog = engine.submit("m", generate(1, 180, 40))
    late: list[Ticket] = []
    for step in range(400):
        if hog.done:
            break
        if len(late) < 60:
            late.append(engine.submit("m", generate(200 + step, 20, 12)))
        engine.step()
        engine.check_integrity()
    assert hog.done and len(hog.result().samples[0].tokens) == 40
    assert all(ticket.done for ticket in early)
    run(engine)
    assert all(ticket.done for ticket in late)


def test_a_prompt_that_another_is_computing_waits_and_finds_it_cached() -> None:
    reports: list[StepReport] = []
    engine = engine_of(paged("llama"), 400, EngineConfig(token_budget=256), reports.append)
    stem = tokens(1, 96)
    tickets = [engine.submit("m", ReadRequest(stem + tokens(9 + index, 20), (100,), (3,))) for index in range(6)]
    run(engine)
    assert [ticket.result().cached for ticket in tickets] == [0, *[96] * 5]
    assert sum(report.prefill_tokens for report in reports) == 96 + 6 * 20
    assert reports[-1].cached_tokens == 5 * 96


def test_what_is_cached_goes_first_but_no_other_waits_for_ever() -> None:
    engine = engine_of(paged("llama"), 400, EngineConfig(max_sequences=1))
    stem = tokens(1, 64)
    engine.submit("m", ReadRequest(stem, (63,), (3,)))
    run(engine)
    cold = engine.submit("m", ReadRequest(tokens(2, 64), (63,), (3,)))
    warm = [engine.submit("m", ReadRequest(stem + tokens(9 + index, 3), (66,), (3,))) for index in range(60)]
    while not cold.done:
        engine.step()
    assert 20 < sum(ticket.done for ticket in warm) < 40
    run(engine)


def test_run_ahead_work_fills_idle_slots_only() -> None:
    engine = engine_of(paged("llama"), 400, EngineConfig(max_sequences=4))
    ahead = engine.submit("m", generate(1, 20, 60, samples=4, priority=1))
    for _ in range(10):
        engine.step()
    urgent = [engine.submit("m", generate(2 + index, 20, 10)) for index in range(4)]
    for _ in range(12):
        engine.step()
        engine.check_integrity()
    assert all(ticket.done for ticket in urgent) and not ahead.done
    run(engine)
    fresh = engine_of(paged("llama"))
    again = fresh.submit("m", generate(1, 20, 60, samples=4))
    run(fresh)
    assert outcome(ahead) == outcome(again)


def test_run_ahead_work_takes_no_memory_from_other_work() -> None:
    reports: list[StepReport] = []
    engine = engine_of(paged("llama"), 12, on_step=reports.append)
    urgent = engine.submit("m", generate(1, 60, 100))
    ahead = [engine.submit("m", generate(2 + index, 60, 40, priority=1)) for index in range(3)]
    steps = 0
    while not urgent.done:
        engine.step()
        engine.check_integrity()
        steps += 1
    assert steps == 100
    run(engine)
    assert all(ticket.done for ticket in ahead)


def test_a_prompt_that_can_never_fit_is_refused_when_it_is_submitted() -> None:
    engine = engine_of(paged("llama"), 4)
    with pytest.raises(EngineError, match="65 tokens needs 5 KV pages of 16, the budget is 4 pages"):
        engine.submit("m", generate(1, 65, 1))
    grows = engine.submit("m", generate(1, 60, 30))
    run(engine)
    with pytest.raises(EngineError, match="65 tokens needs 5 KV pages of 16, the budget is 4 pages"):
        grows.result()


def test_a_request_that_is_cancelled_in_a_step_frees_its_pages_after_it() -> None:
    engine = engine_of(paged("llama"))
    held: list[Ticket] = []

    class Cancels:
        def push(self, token: int) -> bool:
            held[0].cancel()
            return False

    other = engine.submit("m", generate(2, 20, 5))
    request = GenerateRequest(tokens(1, 20), (1, 2), SAMPLING, 9, watch=lambda index: Cancels())
    held.append(engine.submit("m", request))
    engine.step()
    engine.check_integrity()
    run(engine)
    assert other.done and not held[0].done


def test_under_four_percent_of_the_memory_holds_nothing_at_mean_length_512() -> None:
    rng = random.Random(5)
    reports: list[StepReport] = []
    model = paged("llama", max_position_embeddings=2048)
    engine = engine_of(model, 4000, EngineConfig(token_budget=4096), reports.append)
    tickets = [engine.submit("m", generate(index, rng.randint(24, 980), 24)) for index in range(60)]
    while not any(ticket.done for ticket in tickets):
        engine.step()
        if not any(ticket.done for ticket in tickets) and reports[-1].running == 60:
            assert reports[-1].wasted_bytes < 0.04 * reports[-1].leased_bytes
    assert max(report.running for report in reports) == 60
