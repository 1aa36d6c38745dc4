"""The table takes the arms of its policy, seldom asks it, and costs next to nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.routing.regret import regret
from benchmarks.routing.route_trace import replay
from qpdsl.executor.routing.drift import drifting
from qpdsl.executor.routing.linear import LinUCB
from qpdsl.executor.routing.policy import Floats
from qpdsl.executor.routing.route_table import RouteTable
from tests.support.executor.policies import ARMS, FEATURES, Make, chooses_alike, refuses_broken_states
from tests.support.timing import assert_quick

UNIT = 2**-0.5


def table() -> RouteTable:
    return RouteTable(drifting(policy()))


def policy() -> LinUCB:
    return LinUCB(2, 2, beta=0.05, alpha=0.01)


def costs(shares: Floats) -> Floats:
    """Losses [T, 2]: one arm costs what it costs, one by the share; the first is better from a half on."""
    return np.stack([np.full_like(shares, 0.3), 0.05 + 0.5 * shares], 1)


def drawn(count: int) -> tuple[Floats, Floats]:
    """Contexts [T, 2] and losses [T, 2]."""
    shares = np.random.default_rng(0).uniform(0, 1, count)
    return np.stack([np.full_like(shares, UNIT), UNIT * shares], 1), costs(shares)


@pytest.mark.parametrize("check", [chooses_alike, refuses_broken_states])
def test_what_every_policy_keeps(check: Callable[[Make], None]) -> None:
    check(lambda: RouteTable(drifting(LinUCB(ARMS, FEATURES))))


def test_a_table_takes_the_arms_of_its_policy_and_seldom_asks() -> None:
    contexts, losses = drawn(2000)
    routes = table()
    taken = replay(routes, contexts, losses)
    assert regret(losses, taken).over_oracle < 1.02
    assert routes.asked < 150
    assert np.mean(taken[200:] == replay(policy(), contexts, losses)[200:]) > 0.98


def test_costs_that_change_are_seen_at_once() -> None:
    contexts, losses = drawn(1000)
    still = table()
    replay(still, contexts, losses)
    losses[500:] = losses[500:, ::-1]
    changed = table()
    taken = replay(changed, contexts, losses)
    assert changed.asked > 1.3 * still.asked
    assert regret(losses[540:], taken[540:]).over_oracle < 1.05


def test_one_step_that_takes_long_changes_nothing() -> None:
    contexts, losses = drawn(400)
    still, disturbed = table(), table()
    replay(still, contexts, losses)
    losses[300] *= 50
    replay(disturbed, contexts, losses)
    assert disturbed.asked <= still.asked + 2


def test_a_table_begins_from_what_was_learned() -> None:
    contexts, losses = drawn(400)
    routes, warm = table(), table()
    replay(routes, contexts, losses)
    warm.restore(json.loads(json.dumps(routes.state())))
    chosen = [warm.choose((UNIT, UNIT * share)) for share in (0.02, 0.98, 0.02, 0.98)]
    assert chosen == [1, 0, 1, 0]


def test_a_look_up_is_quick() -> None:
    """A step of a table is to cost a tenth of one of the policy within."""
    routes = table()
    contexts, losses = drawn(4000)
    steps = list(zip(map(tuple, contexts.tolist()), losses.tolist(), strict=True))

    def seconds() -> float:
        start = time.thread_time()
        for context, row in steps:
            arm = routes.choose(context)
            routes.learn(context, arm, row[arm])
        return time.thread_time() - start

    assert_quick(seconds, 4000 * 4e-6)
