"""Policies that are only measured: the upper bound, full information, and what linear ones do against drift."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from benchmarks.routing.drift import Restarts, SlidingWindow, forget
from benchmarks.routing.policies import POLICIES, FullInformation, make_policy
from benchmarks.routing.regret import regret
from benchmarks.routing.route_trace import replay
from qpdsl.executor.routing.linear import LinUCB
from qpdsl.executor.routing.policy import Floats, Policy
from tests.executor.routing.test_policies import threshold_steps
from tests.support.executor.policies import (
    ARMS,
    FEATURES,
    Make,
    chooses_alike,
    goes_on_when_restored,
    refuses_broken_states,
    steps,
)
from tests.support.timing import assert_quick

pytestmark = pytest.mark.unshipped
KINDS: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in POLICIES]
KINDS += [
    ("lin_ucb", {"window": 40}),
    ("thompson", {"window": 40, "seed": 3}),
    ("lin_ucb", {"restart_every": 60}),
    ("thompson", {"restart_on_change": True}),
    ("exponential", {"greedy": True}),
]
IDS = [name + "".join(f"-{option}" for option in options) for name, options in KINDS]


@pytest.mark.parametrize(("name", "options"), KINDS, ids=IDS)
@pytest.mark.parametrize("check", [chooses_alike, goes_on_when_restored, refuses_broken_states])
def test_what_every_policy_keeps(name: str, options: dict[str, Any], check: Callable[[Make], None]) -> None:
    check(partial(make_policy, name, ARMS, FEATURES, **options))


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


def test_the_upper_bound_stays_with_what_it_knows() -> None:
    """LLM-QP's literal form at β = 1 never leaves the first arm, though the second costs a tenth."""
    contexts = np.ones((1200, 1))
    losses = np.tile([0.5, 0.05], (1200, 1))
    upper, lower = (
        replay(make_policy(name, 2, 1, beta=1.0), contexts, losses) for name in ("lin_ucb_upper", "lin_ucb")
    )
    assert np.bincount(upper, minlength=2).tolist() == [1200, 0]
    assert np.bincount(lower, minlength=2)[1] > 1100
    learned = replay(make_policy("lin_ucb_upper", 2, 1, beta=0.01, prior=np.zeros((2, 1))), contexts, losses)
    assert np.bincount(learned, minlength=2)[1] > 1100


def test_the_losses_of_both_arms_teach_more_than_one() -> None:
    contexts, losses = threshold_steps(3000)
    one = regret(losses, replay(make_policy("exponential", 2, 2, seed=1), contexts, losses)).dynamic
    for greedy in (False, True):
        full = FullInformation(2, 2, greedy=greedy, seed=1)
        taken = []
        for context, row in zip(contexts, losses, strict=True):
            taken.append(full.choose(context))
            full.learn_all(context, row)
        assert regret(losses, taken).dynamic < one


def swapped(count: int) -> tuple[Floats, Floats]:
    """Steps of which the best and the worst arm swap their costs half way."""
    contexts, losses = steps(count)
    losses += [0.0, 0.3, 0.6]
    half = count // 2
    losses[half:] = losses[half:, ::-1]
    return contexts, losses


@pytest.mark.parametrize("options", [{"window": 80}, {"restart_on_change": True}, {"restart_every": 300}], ids=str)
def test_drift_is_followed(options: dict[str, Any]) -> None:
    contexts, losses = swapped(1200)
    plain, adapting = (
        regret(losses, replay(make_policy("lin_ucb", ARMS, FEATURES, beta=0.05, **more), contexts, losses)).dynamic
        for more in ({}, options)
    )
    assert adapting < 0.8 * plain


def test_the_change_test_restarts_once_and_not_without_a_change() -> None:
    for count, (contexts, losses) in ((1, swapped(1200)), (0, steps(1200))):
        policy = make_policy("lin_ucb", ARMS, FEATURES, restart_on_change=True)
        replay(policy, contexts, losses)
        assert isinstance(policy, Restarts)
        assert policy.restarts == count


def test_a_window_is_what_its_steps_alone_would_teach() -> None:
    contexts, losses = steps(800)
    policy = SlidingWindow(LinUCB(ARMS, FEATURES), 20)
    taken = replay(policy, contexts, losses)
    short = LinUCB(ARMS, FEATURES)
    for step in range(780, 800):
        short.learn(contexts[step], int(taken[step]), float(losses[step, taken[step]]))
    np.testing.assert_allclose(policy.theta, short.theta, atol=1e-9)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: make_policy("best", 2, 2), "there is no policy best"),
        (lambda: make_policy("lin_ucb", 2, 2, speed=3), "does not take"),
        (lambda: make_policy("fixed", 2, 2, window=3), "no window"),
        (lambda: make_policy("lin_ucb", 2, 2, window=3, restart_every=4), "not both"),
        (lambda: make_policy("lin_ucb", 2, 2, window=0), "window"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Callable[[], Policy], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        make()


@pytest.mark.parametrize(("name", "options"), KINDS, ids=IDS)
def test_choose_and_learn_are_quick(name: str, options: dict[str, Any]) -> None:
    contexts, losses = steps(500)
    policy = make_policy(name, ARMS, FEATURES, **options)

    def seconds() -> float:
        start = time.thread_time()
        replay(policy, contexts, losses)
        return time.thread_time() - start

    # A window learns and forgets, and is cleared of rounding now and then. For 500 steps.
    assert_quick(seconds, 500 * (60e-6 if "window" in options else 40e-6))
