"""The router on recorded decoding: a short trace of the built-in model, and what ways to choose come to on one."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.routing.recorded import BUILT_IN, Recording, by_share, recorded, ways
from benchmarks.routing.recorded_tables import goals_of, page
from qpdsl import zoo
from qpdsl.executor.engine.step.routed_head import FEATURES
from qpdsl.executor.kernels.llvm.compile import vector_width
from qpdsl.executor.requests.routing import ARMS

pytestmark = pytest.mark.unshipped


def made(steps: int = 600) -> Recording:
    """Steps whose lists take 1.5 times as long as their share of the head says, and twice as long from half way on."""
    numbers = np.random.default_rng(1)
    own = numbers.uniform(0, 1.4, steps)
    union = own * numbers.uniform(0.7, 1, steps)
    contexts = np.stack([np.ones(steps), own, union, np.ones(steps), np.full(steps, 0.01)], 1) * len(FEATURES) ** -0.5
    slower = np.where(np.arange(steps) < steps // 2, 1.5, 2.0)
    seconds = np.stack([np.ones(steps), slower * own + 0.02, slower * union + 0.04], 1) * 1e-2
    return Recording(contexts, seconds, seconds * 50, steps // 2, 0.6)


def test_the_router_learns_what_the_rule_does_not_know() -> None:
    recording = made()
    found = {each.name: each for each, _ in ways(recording, 2)}
    rule = next(each for name, each in found.items() if name.startswith("rule, usual"))
    assert found["lin_ucb"].over_oracle < 1.05 < rule.over_oracle
    assert min(found[f"always {arm}"].over_oracle for arm in ARMS) > rule.over_oracle
    assert found["lin_ucb"].dynamic < rule.dynamic and found["lin_ucb"].static < 0
    kept = Recording.from_json(json.loads(json.dumps(recording.to_json())))
    assert (by_share(kept, 0.9) == by_share(recording, 0.9)).all() and kept.changed == recording.changed


@pytest.mark.skipif(not vector_width(), reason="this machine has no vectors")
def test_a_short_trace_of_real_decoding() -> None:
    recording = recorded(zoo.path(BUILT_IN), 24, 1)
    assert recording.seconds.shape == (len(recording.contexts), len(ARMS)) and len(recording.contexts) >= 24
    assert (recording.seconds > 0).all() and np.isfinite(recording.losses).all()
    assert 12 <= recording.changed < len(recording.contexts) and 0 < recording.crossover <= 1
    found = list(ways(recording, 1))
    record = {
        "machine": {"processor": "x", "cores": 1, "python": "3", "torch": "2"},
        "threads": 1,
        "clock": "wall",
        "tries": 1,
        "seeds": 1,
        "models": {
            BUILT_IN: {
                "steps": len(recording.seconds),
                "changed": recording.changed,
                "oracle_milliseconds": 1.0,
                "crossover": recording.crossover,
                "ways": [vars(each) for each, _ in found],
            }
        },
    }
    assert len(goals_of(record)) == 1 and "| lin_ucb, warm start |" in page(record)
