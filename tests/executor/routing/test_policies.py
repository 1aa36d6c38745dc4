"""Policies: what they learn, what they promise, what they cost."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from qpdsl.executor.routing.drift import Restarts, SlidingWindow
from qpdsl.executor.routing.lin_ucb import LinUCB
from qpdsl.executor.routing.policies import POLICIES, make_policy
from qpdsl.executor.routing.policy import Floats, Policy
from qpdsl.executor.routing.regret import regret
from qpdsl.executor.routing.ridge import Ridge
from qpdsl.executor.routing.route_trace import replay
from tests.support.timing import assert_quick

ARMS, FEATURES = 3, 6
KINDS: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in POLICIES]
KINDS += [
    ("lin_ucb", {"window": 40}),
    ("thompson", {"window": 40, "seed": 3}),
    ("lin_ucb", {"restart_every": 60}),
    ("thompson", {"restart_on_change": True}),
    ("exponential", {"greedy": True}),
    ("exponential", {"rate": 0.2, "thresholds": (0.1, 0.2)}),
]
IDS = [name + "".join(f"-{option}" for option in options) for name, options in KINDS]


def steps(count: int, seed: int = 0) -> tuple[Floats, Floats]:
    """Contexts [T, d] of a length up to 1, and losses [T, A] that are linear in them, with noise."""
    random = np.random.default_rng(seed)
    contexts = random.random((count, FEATURES)) / np.sqrt(FEATURES)
    true = random.permuted(np.tile(np.linspace(0.0, 2.0, FEATURES) / FEATURES, (ARMS, 1)), axis=1)
    return contexts, contexts @ true.T + random.normal(0, 0.01, (count, ARMS))


@pytest.mark.parametrize(("name", "options"), KINDS, ids=IDS)
def test_the_same_trace_gives_the_same_choices(name: str, options: dict[str, Any]) -> None:
    contexts, losses = steps(150)
    first, second = (replay(make_policy(name, ARMS, FEATURES, **options), contexts, losses) for _ in range(2))
    assert first.tolist() == second.tolist()


@pytest.mark.parametrize(("name", "options"), KINDS, ids=IDS)
def test_a_restored_policy_goes_on_as_the_other_would_have(name: str, options: dict[str, Any]) -> None:
    contexts, losses = steps(220)
    policy, other = (make_policy(name, ARMS, FEATURES, **options) for _ in range(2))
    replay(policy, contexts[:120], losses[:120])
    other.restore(json.loads(json.dumps(policy.state())))
    after = [replay(each, contexts[120:], losses[120:]).tolist() for each in (policy, other)]
    assert after[0] == after[1]


@pytest.mark.parametrize(("name", "options"), KINDS, ids=IDS)
def test_a_broken_state_is_refused_and_changes_nothing(name: str, options: dict[str, Any]) -> None:
    contexts, losses = steps(60)
    policy, other = (make_policy(name, ARMS, FEATURES, **options) for _ in range(2))
    for each in (policy, other):
        replay(each, contexts[:30], losses[:30])
    state = policy.state()
    broken: list[Any] = [{}, None, [], {**state, "arms": 9}]
    values: list[Any] = [None, "?", [[None]], {}, [1.5, float("nan")]]
    broken += [{**state, name: value} for name in state for value in values]
    for each in broken:
        with pytest.raises(ValueError):
            policy.restore(each)
    assert replay(policy, contexts[30:], losses[30:]).tolist() == replay(other, contexts[30:], losses[30:]).tolist()


def test_states_of_other_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="another policy"):
        make_policy("lin_ucb", 2, 3).restore(make_policy("lin_ucb", 3, 3).state())
    with pytest.raises(ValueError, match="another policy"):
        make_policy("lin_ucb", 2, 3).restore(make_policy("thompson", 2, 3).state())


def test_ridge_is_the_regression_of_all_steps() -> None:
    contexts, losses = steps(50)
    prior = np.arange(ARMS * FEATURES, dtype=float).reshape(ARMS, FEATURES)
    ridge = Ridge(ARMS, FEATURES, alpha=0.5, prior=prior)
    for context, row in zip(contexts, losses, strict=True):
        ridge.learn_all(context, row)
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
    for context, row in zip(contexts[10:], losses[10:], strict=True):
        for arm in range(ARMS):
            ridge.forget(context, arm, float(row[arm]))
    short = Ridge(ARMS, FEATURES, alpha=0.5, prior=prior)
    for context, row in zip(contexts[:10], losses[:10], strict=True):
        short.learn_all(context, row)
    np.testing.assert_allclose(ridge.theta, short.theta, atol=1e-8)


@pytest.mark.parametrize("name", ["lin_ucb", "thompson"])
def test_linear_policies_find_the_best_arm(name: str) -> None:
    contexts, losses = steps(1200)
    report = regret(losses, replay(make_policy(name, ARMS, FEATURES, beta=0.05), contexts, losses))
    assert report.over_oracle < 1.04
    assert report.static < 0


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


def threshold_steps(count: int) -> tuple[Floats, Floats]:
    """Two arms, of which the first is right from a feature of 0.6 on."""
    random = np.random.default_rng(5)
    contexts = np.stack([np.ones(count), random.random(count)], 1)
    right = contexts[:, 1] >= 0.6
    return contexts, np.stack([np.where(right, 0.1, 0.9), np.where(right, 0.9, 0.1)], 1)


def test_weights_gather_at_the_right_threshold() -> None:
    contexts, losses = threshold_steps(3000)
    bandit = make_policy("exponential", 2, 2, seed=1)
    report = regret(losses, replay(bandit, contexts, losses))
    # √(T A log N) is 135.
    assert report.dynamic < 135
    for greedy in (False, True):
        full = make_policy("exponential", 2, 2, greedy=greedy, seed=1)
        taken = []
        for context, row in zip(contexts, losses, strict=True):
            taken.append(full.choose(context))
            full.learn_all(context, row)
        assert regret(losses, taken).dynamic < report.dynamic


def test_bandit_estimates_divide_by_the_probability() -> None:
    policy = make_policy("exponential", 2, 1, feature=0, thresholds=(0.25, 0.5, 0.75), rate=1.0)
    # A third of the weight suggests arm 0 at 0.3, so a loss of 0.2 counts as 0.6 for that expert alone.
    policy.learn(np.array([0.3]), 0, 0.2)
    assert policy.state()["losses"] == pytest.approx([0.6, 0.0, 0.0])
    weights = np.array([np.exp(-0.6), 1.0, 1.0])
    np.testing.assert_allclose(policy.weights, weights / weights.sum())  # type: ignore[attr-defined]


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
        (lambda: make_policy("fixed", 2, 2, arm=2), "no arm 2"),
        (lambda: make_policy("fixed", 2, 2, window=3), "no window"),
        (lambda: make_policy("lin_ucb", 2, 2, window=3, restart_every=4), "not both"),
        (lambda: make_policy("lin_ucb", 2, 2, window=0), "window"),
        (lambda: make_policy("lin_ucb", 0, 2), "arms"),
        (lambda: make_policy("lin_ucb", 2, 2, alpha=0.0), "alpha"),
        (lambda: make_policy("lin_ucb", 2, 2, beta=-1.0), "beta"),
        (lambda: make_policy("thompson", 2, 2, prior=np.zeros(3)), "prior"),
        (lambda: make_policy("exponential", 2, 2, thresholds=(0.5, 0.1)), "ascend"),
        (lambda: make_policy("exponential", 2, 2, feature=2), "feature 2"),
        (lambda: make_policy("lin_ucb", 2, 2).learn(np.ones(2), 0, float("nan")), "finite"),
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
    assert_quick(seconds, 500 * (30e-6 if "window" in options else 20e-6))
