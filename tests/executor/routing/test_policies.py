"""Policies: what they learn, what they promise, what they cost."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from benchmarks.routing.regret import regret
from benchmarks.routing.route_trace import replay
from qpdsl.executor.routing.linear import LinUCB, Ridge, Thompson
from qpdsl.executor.routing.policy import Fixed, Floats, Policy
from qpdsl.executor.routing.thresholds import Exponential
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

KINDS: dict[str, Make] = {
    "lin_ucb": partial(LinUCB, ARMS, FEATURES),
    "thompson": partial(Thompson, ARMS, FEATURES, seed=3),
    "exponential": partial(Exponential, ARMS, FEATURES),
    "fixed": partial(Fixed, ARMS, FEATURES),
}


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("check", [chooses_alike, goes_on_when_restored, refuses_broken_states])
def test_what_every_policy_keeps(make: Make, check: Callable[[Make], None]) -> None:
    check(make)


def test_states_of_other_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="another policy"):
        LinUCB(2, 3).restore(LinUCB(3, 3).state())
    with pytest.raises(ValueError, match="another policy"):
        LinUCB(2, 3).restore(Thompson(2, 3).state())


def test_ridge_is_the_regression_of_all_steps() -> None:
    contexts, losses = steps(50)
    prior = np.arange(ARMS * FEATURES, dtype=float).reshape(ARMS, FEATURES)
    ridge = Ridge(ARMS, FEATURES, alpha=0.5, prior=prior)
    for context, row in zip(contexts, losses, strict=True):
        for arm in range(ARMS):
            ridge.learn(context, arm, float(row[arm]))
    for arm in range(ARMS):
        precision = 0.5 * np.eye(FEATURES) + contexts.T @ contexts
        wanted = np.linalg.solve(precision, 0.5 * prior[arm] + contexts.T @ losses[:, arm])
        np.testing.assert_allclose(ridge.theta[arm], wanted, atol=1e-9)
        _, spread = ridge.scores(contexts[0])
        np.testing.assert_allclose(spread[arm] ** 2, contexts[0] @ np.linalg.solve(precision, contexts[0]), atol=1e-9)
    # Of the evidence a quarter.
    warm = Ridge(ARMS, FEATURES, alpha=0.5, prior=prior)
    warm.restore(ridge.state(), keep=0.25)
    precision = 0.5 * np.eye(FEATURES) + 0.25 * contexts.T @ contexts
    wanted = np.linalg.solve(precision, 0.5 * prior[1] + 0.25 * contexts.T @ losses[:, 1])
    np.testing.assert_allclose(warm.theta[1], wanted, atol=1e-9)


@pytest.mark.parametrize("make", [LinUCB, Thompson])
def test_linear_policies_find_the_best_arm(make: type[LinUCB | Thompson]) -> None:
    contexts, losses = steps(1200)
    report = regret(losses, replay(make(ARMS, FEATURES, beta=0.05), contexts, losses))
    assert report.over_oracle < 1.04
    assert report.static < 0


def test_hope_leaves_the_arm_that_it_took_first() -> None:
    losses = np.tile([0.5, 0.05], (1200, 1))
    taken = replay(LinUCB(2, 1, beta=1.0), np.ones((1200, 1)), losses)
    assert np.bincount(taken, minlength=2)[1] > 1100


def threshold_steps(count: int) -> tuple[Floats, Floats]:
    """Two arms, of which the first is right from a feature of 0.6 on."""
    random = np.random.default_rng(5)
    contexts = np.stack([np.ones(count), random.random(count)], 1)
    right = contexts[:, 1] >= 0.6
    return contexts, np.stack([np.where(right, 0.1, 0.9), np.where(right, 0.9, 0.1)], 1)


def test_weights_gather_at_the_right_threshold() -> None:
    contexts, losses = threshold_steps(3000)
    report = regret(losses, replay(Exponential(2, 2, seed=1), contexts, losses))
    # √(T A log N) is 135.
    assert report.dynamic < 135


def test_bandit_estimates_divide_by_the_probability() -> None:
    policy = Exponential(2, 2)
    # A third of the 21 experts suggest arm 0 at 0.3, so a loss of 0.2 counts as 0.6 for those alone.
    policy.learn((0.0, 0.3), 0, 0.2)
    assert policy.state()["losses"] == pytest.approx([0.6] * 7 + [0.0] * 14)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: LinUCB(0, 2), "arms"),
        (lambda: LinUCB(2, 2, alpha=0.0), "alpha"),
        (lambda: LinUCB(2, 2, beta=-1.0), "beta"),
        (lambda: Thompson(2, 2, prior=np.zeros(3)), "prior"),
        (lambda: Exponential(2, 2, below=2), "arms 0 and 2"),
        (lambda: LinUCB(2, 2).learn(np.ones(2), 0, float("nan")), "finite"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Callable[[], Policy], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        make()


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_choose_and_learn_are_quick(make: Make) -> None:
    contexts, losses = steps(500)
    policy = make()

    def seconds() -> float:
        start = time.thread_time()
        replay(policy, contexts, losses)
        return time.thread_time() - start

    # For 500 steps; a step takes some 15 us, and one that copies or inverts what it need not takes 200.
    assert_quick(seconds, 500 * 60e-6)
