"""Fixed parts of the KV memory for each model, to hold the session's own way of sharing it against."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.session.session import Session


def split_session(
    plan: PhysicalPlan,
    kv_bytes: int,
    shares: Mapping[str, float],
    configs: Mapping[str, EngineConfig] | None = None,
    **settings: Any,
) -> Session:
    """A session whose models have these shares of the memory, each in an engine of its own that is given no more.

    `configs` say how the engines of some models step. Raises EngineError where a share does not hold a page.
    """
    session = Session(kv_bytes=kv_bytes, **settings)
    session.load(plan)
    config = session._local.config
    # What the session has cut for all of them is not needed.
    session._local.models.release()
    for name, model in session._here.items():
        own = (configs or {}).get(name, config)
        engine = PagedEngine(own, session._stepped, int(kv_bytes * shares[name]))
        engine.add(name, model.paged)
        session._engine.place(name, engine)
    return session
