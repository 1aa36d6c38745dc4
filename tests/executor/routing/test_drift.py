"""What a policy does where costs change."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from benchmarks.routing.regret import regret
from benchmarks.routing.route_trace import replay
from qpdsl.executor.routing.drift import Restarts, SlidingWindow, drifting, forget
from qpdsl.executor.routing.linear import LinUCB, Thompson
from qpdsl.executor.routing.policy import Floats
from tests.support.executor.policies import (
    ARMS,
    FEATURES,
    Make,
    chooses_alike,
    goes_on_when_restored,
    refuses_broken_states,
    steps,
)

KINDS: dict[str, Make] = {
    "a window": lambda: SlidingWindow(LinUCB(ARMS, FEATURES), 40),
    "a window of another policy": lambda: SlidingWindow(Thompson(ARMS, FEATURES, seed=3), 40),
    "restarts": lambda: Restarts(Thompson(ARMS, FEATURES)),
    "both": lambda: drifting(LinUCB(ARMS, FEATURES)),
}


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("check", [chooses_alike, goes_on_when_restored, refuses_broken_states])
def test_what_every_policy_keeps(make: Make, check: Callable[[Make], None]) -> None:
    check(make)


def test_a_step_can_be_forgotten() -> None:
    contexts, losses = steps(50)
    policy, short = LinUCB(ARMS, FEATURES), LinUCB(ARMS, FEATURES)
    for number, (context, row) in enumerate(zip(contexts, losses, strict=True)):
        for arm in range(ARMS):
            policy.learn(context, arm, float(row[arm]))
            if number < 10:
                short.learn(context, arm, float(row[arm]))
    for context, row in zip(contexts[10:], losses[10:], strict=True):
        for arm in range(ARMS):
            forget(policy, context, arm, float(row[arm]))
    np.testing.assert_allclose(policy.theta, short.theta, atol=1e-8)


def swapped(count: int) -> tuple[Floats, Floats]:
    """Steps of which the best and the worst arm swap their costs half way."""
    contexts, losses = steps(count)
    losses += [0.0, 0.3, 0.6]
    half = count // 2
    losses[half:] = losses[half:, ::-1]
    return contexts, losses


@pytest.mark.parametrize(
    "make", [partial(SlidingWindow, window=80), Restarts, drifting], ids=["window", "restarts", "both"]
)
def test_drift_is_followed(make: Callable[[LinUCB], SlidingWindow | Restarts]) -> None:
    contexts, losses = swapped(1200)
    policies = (LinUCB(ARMS, FEATURES, beta=0.05), make(LinUCB(ARMS, FEATURES, beta=0.05)))
    plain, adapting = (regret(losses, replay(policy, contexts, losses)).dynamic for policy in policies)
    assert adapting < 0.8 * plain


def test_the_change_test_restarts_once_and_not_without_a_change() -> None:
    for count, (contexts, losses) in ((1, swapped(1200)), (0, steps(1200))):
        policy = Restarts(LinUCB(ARMS, FEATURES))
        replay(policy, contexts, losses)
        assert policy.restarts == count


def test_a_window_is_what_its_steps_alone_would_teach() -> None:
    contexts, losses = steps(800)
    policy = SlidingWindow(LinUCB(ARMS, FEATURES), 20)
    taken = replay(policy, contexts, losses)
    short = LinUCB(ARMS, FEATURES)
    for step in range(780, 800):
        short.learn(contexts[step], int(taken[step]), float(losses[step, taken[step]]))
    np.testing.assert_allclose(policy.theta, short.theta, atol=1e-9)
