"""A router of early exits: the same tokens however a run is carried out, and it learns what pays."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from qpdsl.executor.engine.exit import exit_router
from qpdsl.executor.engine.exit.exit_router import DrawCosts, ExitRouter, ExpectedExits, Paid, Seen
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.executor.kernels.llvm.compile import vector_width
from qpdsl.executor.requests.drawing import Drafting
from qpdsl.executor.requests.early_exit import EarlyExit
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import GenerateRequest, Sample, SamplingParams
from qpdsl.executor.requests.routing import ExitArm, ExitRouting
from tests.support.executor.models import engine_of, paged, served

needs_vectors = pytest.mark.skipif(not vector_width(), reason="this machine has no vectors")

LAYERS = 4
ROUTED = EarlyExit(0.05, 2, route=ExitRouting("thompson"))


@cache
def model() -> PagedModel:
    return paged("llama", num_hidden_layers=LAYERS)


def requests(leave: EarlyExit | None) -> tuple[GenerateRequest, ...]:
    return tuple(
        GenerateRequest((5, 17, 80, number), tuple(range(number, number + 2)), SamplingParams(1.0), 40, exit=leave)
        for number in range(1, 9)
    )


def doubtful() -> dict[str, Any]:
    """A state by which some draws try their exit and others do not."""
    router = ExitRouter(ExitRouting("thompson"), ExpectedExits(0.5, 0.0, 0.5, 0.5))
    for number in range(400):
        stood = number % 2 == 0
        router.note(Seen(number, number % 40, (0.4 if stood else 0.01, stood), 1.0, 9), "exit", stood)
    return router.learned(DrawCosts(*(Paid(seconds, 100) for seconds in (0.5, 0.4, 0.3, 0.2))))


def engine(pages: int = 400, config: EngineConfig | None = None, leave: EarlyExit = ROUTED) -> PagedEngine:
    made = engine_of(model(), pages, config)
    router = made.exits("m").router(leave)
    assert router is not None
    router.restore(doubtful())
    return made


def told(rows: list[tuple[Sample, ...]]) -> list[list[object]]:
    return [
        [
            (sample.tokens, sample.logprobs, sample.steps.exits, sample.steps.refined, sample.steps.full)
            for sample in row
        ]
        for row in rows
    ]


@cache
def plain() -> list[list[object]]:
    return told(served(engine(), requests(ROUTED)))


@needs_vectors
@pytest.mark.parametrize("shadow", [0.0, 0.5])
@pytest.mark.parametrize(
    ("pages", "config"),
    [(400, None), (400, EngineConfig(max_sequences=1)), (7, EngineConfig(token_budget=37))],
    ids=["batch", "alone", "least-memory"],
)
def test_choices_depend_on_the_state_and_the_row_alone(
    shadow: float, pages: int, config: EngineConfig | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Many draws try what seems not to pay.
    monkeypatch.setattr(exit_router, "_TRIES", 0.4)
    leave = replace(ROUTED, deferred=True, shadow=shadow)
    rows = served(engine(pages, config, leave), requests(leave))
    assert told(rows) == plain()
    steps = [sample.steps for row in rows for sample in row]
    assert sum(one.full for one in steps) > 50 and sum(one.exits + one.refined for one in steps) > 50
    assert all(one.full + one.exits + one.refined == one.draws for one in steps)


@needs_vectors
def test_the_full_arm_draws_the_full_models_tokens() -> None:
    full, none = (
        [[sample.tokens for sample in row] for row in served(engine_of(model()), requests(leave))]
        for leave in (replace(ROUTED, deferred=True, route=ExitRouting("fixed", "full")), None)
    )
    assert full == none


@needs_vectors
@pytest.mark.parametrize("policy", ["lin_ucb", "thompson"])
@pytest.mark.parametrize(("margin", "arm"), [(1.1, "full"), (0.0, "exit")])
def test_it_learns_whether_exits_stand(policy: Any, margin: float, arm: Any) -> None:
    leave = EarlyExit(margin, 1, deferred=True, route=ExitRouting(policy))
    state: dict[str, Any] | None = None
    shares = []
    for _ in range(4):
        run = engine_of(model())
        router = run.exits("m").router(leave)
        assert router is not None
        if state is not None:
            router.restore(state)
        before = router.digest
        served(run, requests(leave))
        # What is seen in a run changes nothing in it.
        assert router.digest == before
        shares.append(router.draws[arm] / sum(router.draws.values()))
        state = json.loads(json.dumps(router.learned(costs())))
    assert shares[-1] > 0.9 and shares[-1] >= shares[0]


def costs() -> DrawCosts:
    """An exit costs a third of a full draw."""
    return DrawCosts(*(Paid(seconds, 100) for seconds in (0.2, 0.1, 0.5, 0.2)))


def test_what_a_run_shows_counts_in_any_order() -> None:
    seen: list[tuple[Seen, ExitArm, bool]] = [
        (Seen(number % 7, number, (0.1 * (number % 3), True), 0.5, 9), "exit", number % 4 == 0) for number in range(60)
    ]
    states = []
    for order in (seen, seen[::-1]):
        router = ExitRouter(ExitRouting(), ExpectedExits(0.5, 0.01, 0.5, 0.6))
        for one in order:
            router.note(*one, same=None if one[0].position % 6 else one[0].position > 6)
        states.append(router.learned(costs()))
    assert states[0] == states[1] and states[0]["shadows"][0][0] == 10


def test_quality_weighs_by_one_less_lambda() -> None:
    """Exits that save little and are often wrong: who cares for quality leaves them out."""
    tries = {}
    for latency in (0.05, 0.95):
        routing, expected = ExitRouting(latency=latency), ExpectedExits(0.9, 0.0, 0.7, 0.3)
        router = ExitRouter(routing, expected)
        for number in range(300):
            router.note(Seen(number, 3, (0.9, True), 1.0, 9), "exit", True, number % 5 > 1)
        after = ExitRouter(routing, expected)
        after.restore(router.learned(costs()))
        arms = [after.arm(Seen(number, 3, (0.9, True), 1.0, 9)) for number in range(1000)]
        tries[latency] = arms.count("exit") / 1000
    assert tries[0.05] < 0.1 and tries[0.95] > 0.9


def test_reranking_is_an_arm_of_its_own_where_the_exit_has_it() -> None:
    """It saves reading the head again where the token does not stand, and pays as long as it is seldom wrong."""
    expected = ExpectedExits(0.5, 0.0, 0.5, 0.5)
    spent = DrawCosts(*(Paid(seconds, 100) for seconds in (0.2, 0.1, 0.2, 0.6, 0.05)))
    taken = {}
    for wrong in (0, 9):
        router = ExitRouter(ExitRouting(), expected, reranks=True)
        for number in range(600):
            arm: ExitArm = "rerank" if number % 2 else "exit"
            same = number % 10 >= wrong if arm == "rerank" else True
            router.note(Seen(number, 3, (0.1, False), 1.0, 9), arm, number % 8 < 2, same)
        after = ExitRouter(ExitRouting(), expected, reranks=True)
        after.restore(json.loads(json.dumps(router.learned(spent))))
        arms = [after.arm(Seen(number, 3, (0.1, False), 1.0, 9)) for number in range(500)]
        taken[wrong] = arms.count("rerank") / 500
    assert taken[0] > 0.95 and taken[9] < 0.05
    with pytest.raises(ValueError, match="other arms"):
        ExitRouter(ExitRouting(), expected).restore(router.state())


@needs_vectors
def test_the_arms_of_an_exit_that_reranks() -> None:
    """Each draws what a program without a router draws so; a router takes them draw by draw, in any batch."""
    reranked = EarlyExit(0.05, 2, rerank=3)
    for arm, alike in {"exit": replace(reranked, rerank=None), "rerank": reranked, "full": None}.items():
        route = ExitRouting("fixed", arm)  # type: ignore[arg-type]
        routed = engine_of(model())
        found = served(routed, requests(replace(reranked, route=route)))
        assert [sample.tokens for row in found for sample in row] == [
            sample.tokens for row in served(engine_of(model()), requests(alike)) for sample in row
        ]
        router = routed.exits("m").router(replace(reranked, layer=2, route=route))
        assert router is not None and {own for own, count in router.draws.items() if count} == {arm}
    leave = replace(reranked, route=ExitRouting("thompson"))
    runs = []
    for config, pages in ((None, 400), (EngineConfig(max_sequences=3), 30)):
        routed = engine_of(model(), pages, config)
        runs.append(told(served(routed, requests(leave))))
        router = routed.exits("m").router(leave)
        assert router is not None and router.draws["exit"] and router.draws["rerank"]
    assert runs[0] == runs[1]


@pytest.mark.parametrize("state", [None, {}, {"arms": ["dense"]}, {"arms": ["exit", "full"], "latency": 0.5}])
def test_a_state_that_is_none_is_refused(state: object) -> None:
    router = ExitRouter(ExitRouting(), ExpectedExits(0.5, 0.0, 0.5, 0.5))
    before = router.state()
    with pytest.raises(ValueError, match="state"):
        router.restore(state)
    assert router.state() == before


@needs_vectors
def test_samples_with_drafts_are_refused() -> None:
    (request, *_) = requests(ROUTED)
    with pytest.raises(EngineError, match="no router for its early exit"):
        engine().submit("m", replace(request, draft=Drafting("ngram", length=3)))
