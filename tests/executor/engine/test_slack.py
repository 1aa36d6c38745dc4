"""Urgent requests and those whose deadlines are near go first; nobody waits for ever, and no token changes by it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.executor.engine.step_report import StepReport
from qpdsl.executor.requests.request import Client, GenerateRequest, SamplingParams
from qpdsl.executor.requests.ticket import Ticket
from tests.support.executor.models import VOCABULARY, paged

URGENT = Client("urgent", urgency=1)
NOBODY = Client()


class Clock:
    """A clock that a test sets: each step takes a second."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@cache
def models() -> dict[str, PagedModel]:
    """Two models whose pages differ in size."""
    return {"small": paged("llama"), "large": paged("gpt_neox", seed=1)}


def engine_of(
    pages: int,
    config: EngineConfig | None = None,
    on_step: Callable[[StepReport], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> PagedEngine:
    """Both models in the memory of so many pages of the larger ones."""
    engine = PagedEngine(config, on_step, pages * models()["large"].layout.page_bytes, clock)
    for name, model in models().items():
        engine.add(name, model)
    return engine


def generate(seed: int, count: int, length: int, client: Client = NOBODY) -> GenerateRequest:
    rng = random.Random(seed)
    prompt = tuple(rng.randrange(1, VOCABULARY) for _ in range(count))
    return GenerateRequest(prompt, (seed,), SamplingParams(), length, client=client)


def drive(engine: PagedEngine, clock: Clock, ends: dict[str, float], tickets: dict[str, Ticket]) -> None:
    """Steps to the end, a second each, and notes when each ticket was done."""
    for _ in range(3000):
        if not engine.has_work:
            return
        engine.step()
        engine.check_integrity()
        clock.now += 1.0
        for name, ticket in tickets.items():
            if ticket.done:
                ends.setdefault(name, clock.now)
    raise AssertionError("the engine does not come to an end")


@pytest.mark.parametrize(("told", "met"), [(False, 1), (True, 6)], ids=["arrival", "slack"])
def test_deadlines_are_met_across_two_models_that_share_memory_which_order_of_arrival_misses(
    told: bool, met: int
) -> None:
    """Six requests have just time enough in the order of their deadlines, behind a load that has none."""
    clock = Clock()
    engine = engine_of(14, EngineConfig(max_sequences=2), clock=clock)
    # The models learn how long a step takes.
    drive(engine, clock, {}, {name: engine.submit(name, generate(1, 8, 20)) for name in models()})
    load = [engine.submit(name, generate(10 + at, 60, 60)) for at, name in enumerate(("small", "large") * 3)]
    deadlines = [clock.now + 30 + 45 * place for place in (5, 4, 3, 2, 1, 0)]
    tickets: dict[str, Ticket] = {}
    for at, deadline in enumerate(deadlines):
        client = Client(str(at), deadline=deadline if told else None)
        tickets[str(at)] = engine.submit(("small", "large")[at % 2], generate(50 + at, 40, 20, client))
    ends: dict[str, float] = {}
    drive(engine, clock, ends, tickets)
    assert sum(ends[str(at)] <= deadline for at, deadline in enumerate(deadlines)) == met
    assert all(ticket.done for ticket in load)


def test_what_is_late_already_makes_nothing_else_late() -> None:
    clock = Clock()
    engine = engine_of(60, EngineConfig(max_sequences=1), clock=clock)
    drive(engine, clock, {}, {"": engine.submit("small", generate(1, 8, 20))})
    tickets = {
        "running": engine.submit("small", generate(2, 8, 30, Client(deadline=clock.now + 31))),
        "hopeless": engine.submit("small", generate(3, 8, 30, Client(deadline=clock.now + 10))),
        "early": engine.submit("small", generate(4, 8, 10, Client(deadline=clock.now + 45))),
    }
    late = {"late": engine.submit("small", generate(5, 8, 10, Client(deadline=clock.now - 1)))}
    begin = clock.now
    ends: dict[str, float] = {}
    drive(engine, clock, ends, tickets | late)
    assert ends["early"] - begin <= 45
    assert ends["late"] == max(ends.values())


def test_the_urgent_takes_the_slot_of_one_that_is_not_and_the_first_step() -> None:
    reports: list[StepReport] = []
    engine = engine_of(60, EngineConfig(max_sequences=2), reports.append)
    others = [engine.submit(name, generate(at, 20, 40)) for at, name in enumerate(("small", "large") * 3)]
    for _ in range(10):
        engine.step()
    urgent = engine.submit("large", generate(100, 20, 15, URGENT))
    before = len(reports)
    while not urgent.done:
        engine.step()
        engine.check_integrity()
    assert len(reports) - before == 15, "no step of another model, none without a slot"
    while engine.has_work:
        engine.step()
    assert all(ticket.done for ticket in others)


@pytest.mark.parametrize("urgent_model", ["small", "large"])
def test_a_flood_of_urgent_requests_starves_neither_a_request_nor_a_model(urgent_model: str) -> None:
    """Of 33 sequences that are admitted one at least is the oldest, of whichever model."""
    engine = engine_of(12, EngineConfig(max_sequences=2))
    flood = [engine.submit(urgent_model, generate(200 + at, 30, 4, URGENT)) for at in range(4)]
    patient = [engine.submit("small", generate(at, 60, 30)) for at in range(2)]
    done_when: list[int] = []
    for step in range(2000):
        if all(ticket.done for ticket in patient):
            break
        if sum(not ticket.done for ticket in flood) < 4:
            flood.append(engine.submit(urgent_model, generate(300 + step, 30, 4, URGENT)))
        engine.step()
        engine.check_integrity()
        done_when += [len(flood)] * (sum(ticket.done for ticket in patient) - len(done_when))
    assert len(done_when) == 2
    assert done_when[-1] <= 2 * (33 + 40)
    while engine.has_work:
        engine.step()
    assert all(ticket.done for ticket in flood)


def test_a_flood_of_deadlines_does_not_starve_one_without() -> None:
    clock = Clock()
    engine = engine_of(60, EngineConfig(max_sequences=1), clock=clock)
    patient: Ticket | None = None
    flood: list[Ticket] = []
    for step in range(400):
        if sum(not ticket.done for ticket in flood) < 3:
            flood.append(engine.submit("small", generate(300 + step, 10, 3, Client(deadline=clock.now + 1e6))))
        if step == 5:
            patient = engine.submit("small", generate(1, 10, 5))
        engine.step()
        clock.now += 1.0
        if patient is not None and patient.done:
            break
    assert patient is not None and patient.done
    assert 30 <= len(flood) <= 45


@pytest.mark.parametrize("pages", [14, 200])
def test_no_token_changes_by_who_asks(pages: int) -> None:
    """Owners of every kind, in little memory and in much: the samples are those of each request alone."""
    rng = random.Random(7)
    requests = [
        (("small", "large")[at % 2], replace(generate(at, 10 + 4 * at, 20), keys=(at, 1000 + at))) for at in range(10)
    ]
    alone = []
    for name, request in requests:
        engine = engine_of(60)
        ticket = engine.submit(name, request)
        while engine.has_work:
            engine.step()
        alone.append(ticket.result().samples)
    for _ in range(3):
        clock = Clock()
        reports: list[StepReport] = []
        engine = engine_of(pages, EngineConfig(max_sequences=3, token_budget=24), reports.append, clock)
        tickets: list[Ticket] = []
        for name, request in requests:
            deadline = rng.choice([None, clock.now - 5, clock.now + rng.randrange(1, 400)])
            tickets.append(engine.submit(name, replace(request, client=Client("x", rng.randrange(3), deadline))))
            engine.step()
            clock.now += 1.0
        drive(engine, clock, {}, {})
        assert [ticket.result().samples for ticket in tickets] == alone
        assert pages > 14 or sum(report.preemptions for report in reports) > 0
