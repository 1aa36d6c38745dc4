"""The types of keys and values are told twice, as planner and engine share no folder; they are the same."""

from __future__ import annotations

from qpdsl.executor.engine.memory import kv_cache
from qpdsl.planner.plan import physical


def test_planner_and_engine_know_the_same_types() -> None:
    assert physical.KV_TYPES == kv_cache.KV_TYPES
