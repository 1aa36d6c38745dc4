"""Fixed parts of the KV memory for each model, to hold the session's own way of sharing it against."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from qpdsl.executor.engine.paged_engine import PagedEngine
from qpdsl.executor.requests.request import Request
from qpdsl.executor.requests.ticket import Ticket
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.session.session import Session


class SplitEngine(PagedEngine):
    """One engine a model, stepped in turn, each with the memory that it was given and no more."""

    def __init__(self, engines: Mapping[str, PagedEngine]) -> None:
        super().__init__()
        self._engines = dict(engines)
        self._waiting: asyncio.Event | None = None

    @property
    def has_work(self) -> bool:
        return any(engine.has_work for engine in self._engines.values())

    def busy(self, model: str) -> int:
        return self._engines[model].busy(model)

    def submit(self, model: str, request: Request) -> Ticket:
        ticket = self._engines[model].submit(model, request)
        if self._waiting is not None:
            self._waiting.set()
        return ticket

    def step(self) -> None:
        for engine in self._engines.values():
            if engine.has_work:
                engine.step()

    async def drive(self) -> None:
        self._waiting = asyncio.Event()
        while True:
            if self.has_work:
                self.step()
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            else:
                self._waiting.clear()
                await self._waiting.wait()


def split_session(plan: PhysicalPlan, kv_bytes: int, shares: Mapping[str, float]) -> Session:
    """A session whose models have these shares of the memory, each for itself."""
    session = Session(kv_bytes=kv_bytes)
    session.load(plan)
    engines = {}
    for name, model in session._here.items():
        least = 3 * model.paged.layout.page_bytes
        engine = PagedEngine(session._local.config, session._stepped, max(least, int(kv_bytes * shares[name])))
        engine.add(name, model.paged)
        engines[name] = engine
    session._engine = SplitEngine(engines)
    return session
