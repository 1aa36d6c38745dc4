"""Steps for policies of `executor/routing`, and what every policy must keep."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks.routing.route_trace import replay
from qpdsl.executor.routing.policy import Floats, Policy

ARMS, FEATURES = 3, 6
Make = Callable[[], Policy]


def steps(count: int, seed: int = 0) -> tuple[Floats, Floats]:
    """Contexts [T, d] of a length up to 1, and losses [T, A] that are linear in them, with noise."""
    random = np.random.default_rng(seed)
    contexts = random.random((count, FEATURES)) / np.sqrt(FEATURES)
    true = random.permuted(np.tile(np.linspace(0.0, 2.0, FEATURES) / FEATURES, (ARMS, 1)), axis=1)
    return contexts, contexts @ true.T + random.normal(0, 0.01, (count, ARMS))


def chooses_alike(make: Make) -> None:
    """The same trace gives the same choices."""
    contexts, losses = steps(150)
    first, second = (replay(make(), contexts, losses) for _ in range(2))
    assert first.tolist() == second.tolist()


def goes_on_when_restored(make: Make) -> None:
    """A restored policy makes the choices that the other would have made."""
    contexts, losses = steps(220)
    policy, other = make(), make()
    replay(policy, contexts[:120], losses[:120])
    other.restore(json.loads(json.dumps(policy.state())))
    after = [replay(each, contexts[120:], losses[120:]).tolist() for each in (policy, other)]
    assert after[0] == after[1]


def refuses_broken_states(make: Make) -> None:
    """A broken state is refused and changes nothing."""
    contexts, losses = steps(60)
    policy, other = make(), make()
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
