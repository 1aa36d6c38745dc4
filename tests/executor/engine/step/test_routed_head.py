"""A router decides how the head is computed: no token depends on it, and it learns what is quicker."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.routing.recorder import Recorder
from qpdsl.executor.engine.step import routed_head
from qpdsl.executor.engine.step.routed_head import FEATURES, HeadRouter, RoutedStep, context_of, policy_of
from qpdsl.executor.kernels.llvm.compile import vector_width
from qpdsl.executor.kernels.llvm.panel_head import HeadPlanner
from qpdsl.executor.requests.drawing import Drafting
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import GenerateRequest, SamplingParams
from qpdsl.executor.requests.routing import ARMS, Routing
from qpdsl.executor.routing.policy import Context, Fixed
from tests.executor.engine.step.test_compiled_head import requests, tokens_and_scores
from tests.support.executor.models import engine_of, paged, served
from tests.support.executor.rule_mask import RuleMask

pytestmark = pytest.mark.skipif(not vector_width(), reason="this machine has no vectors")

_ROUTERS = (
    *(Routing("fixed", (arm,)) for arm in ARMS),
    Routing("lin_ucb"),
    Routing("thompson", seed=3),
    Routing("exponential", ("dense", "rows")),
)


class _AtRandom(Fixed):
    """Another arm each time."""

    _random = random.Random(5)

    def choose(self, context: Context) -> int:
        return self._random.randrange(self.arms)


def routed(batch: list[GenerateRequest], route: Routing | None) -> tuple[GenerateRequest, ...]:
    """The same requests, every other one with jumps or drafts."""
    ways = ({}, {"jump": True}, {"draft": Drafting("ngram", length=3, fixed=True)}, {})
    return tuple(replace(request, sparse=True, route=route, **ways[number % 4]) for number, request in enumerate(batch))


@pytest.mark.parametrize(("name", "native"), [("gemma2", True), ("gpt_neox", False)])
def test_any_arm_at_any_step_gives_the_same_tokens_and_scores(
    name: str, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = paged(name, native=native)
    expected = tokens_and_scores(served(engine_of(model), routed(requests(), None)))
    for route in _ROUTERS:
        engine = engine_of(model)
        samples = served(engine, routed(requests(), route))
        assert tokens_and_scores(samples) == expected
        head = engine.routed("m")
        assert head is not None
        counted = head.routers[route].steps
        assert counted.total() and set(counted) <= set(route.arms)
        # A sample counts the steps that it was part of.
        assert max(sum(count for _, count in sample.steps.arms) for group in samples for sample in group) > 1
    monkeypatch.setattr(routed_head, "policy_of", lambda routing: _AtRandom(len(routing.arms), len(FEATURES)))
    # In little memory too, where samples are preempted, and with every arm tried at every step.
    recorder = None
    for engine, records in ((engine_of(model, 14), False), (engine_of(model), True)):
        head = engine.routed("m")
        assert head is not None
        recorder = Recorder(head) if records else None
        assert tokens_and_scores(served(engine, routed(requests(), Routing()))) == expected
        assert set(head.routers[Routing()].steps) == set(ARMS)
    assert recorder is not None
    trace = recorder.trace()
    assert np.isfinite(trace.losses).all() and len(trace.taken) == head.routers[Routing()].steps.total()


def test_what_cannot_be_routed_is_refused() -> None:
    engine = engine_of(paged("llama", native=False))
    request = GenerateRequest((1, 2, 3), (0,), SamplingParams(0), 4, mask=RuleMask, sparse=True, route=Routing())
    served(engine, (request,))
    from qpdsl.executor.engine.model.paged_model import PagedModel
    from tests.support.executor.models import random_model

    kernels = engine_of(PagedModel(random_model("llama"), kernels=True))
    with pytest.raises(EngineError, match="one way to compute its head"):
        kernels.submit("m", request)


def test_steps_without_a_choice_are_not_routed() -> None:
    engine = engine_of(paged("llama"))
    served(engine, (GenerateRequest((1, 2, 3), (0,), SamplingParams(0), 4, sparse=True, route=Routing()),))
    head = engine.routed("m")
    assert head is not None and not head.routers and head.choice is None


def test_a_policy_learns_which_arm_is_quicker_here() -> None:
    """Listed panels that take twice as long as neighbours: the belief that reading is all that costs is unlearned."""
    planner = HeadPlanner(640, 16, 0.9)
    numbers = np.random.default_rng(0)
    policies = {name: policy_of(Routing(name)) for name in ("lin_ucb", "thompson")}
    paid = dict.fromkeys(policies, 0.0)
    best = 0.0
    for step in range(600):
        count = int(np.exp(numbers.uniform(0, np.log(10_240))))
        ids = np.zeros((2, 10_240), dtype=bool)
        ids[:, numbers.choice(10_240, count, replace=False)] = True
        reach = planner.reach(
            np.arange(2), np.ones(2, bool), np.packbits(ids, axis=1, bitorder="little").view(np.int32)
        )
        assert reach is not None
        costs = (reach.dense, 2 * reach.own, 2 * reach.shared)
        context = context_of(reach)
        shown = RoutedStep(Routing(), context, reach, 1e4)
        for name, policy in policies.items():
            arm = policy.choose(context)
            policy.learn(context, arm, shown.loss(costs[arm] * 1e-6))
            paid[name] += costs[arm] if step >= 200 else 0.0
        best += min(costs) if step >= 200 else 0.0
    assert all(total <= 1.02 * best for total in paid.values())


def test_what_was_learned_goes_on_in_another_run_and_nothing_foreign_does() -> None:
    first, second = HeadRouter.of(Routing()), HeadRouter.of(Routing())
    context = (0.4,) * len(FEATURES)
    for _ in range(50):
        arm = first.policy.choose(context)
        first.policy.learn(context, arm, 0.9 if arm else 0.1)
    second.restore(json.loads(json.dumps(first.state())))
    assert second.policy.choose(context) == first.policy.choose(context) == 0
    for foreign in (None, [], {}, {**first.state(), "arms": ["dense"]}, {**first.state(), "policy": {"kind": "x"}}):
        with pytest.raises(ValueError, match="state"):
            second.restore(foreign)


@pytest.mark.parametrize("name", ["none", "lin_ucb", "thompson", "exponential", "fixed:rows"])
def test_routings_by_name(name: str) -> None:
    found = Routing.named(name)
    assert (found is None) == (name == "none") and (found is None or str(found) == name)


@pytest.mark.parametrize("name", ["", "fixed", "fixed:columns", "lin_ucb:rows", "best"])
def test_no_such_routing(name: str) -> None:
    with pytest.raises(ValueError, match="a router is"):
        Routing.named(name)
