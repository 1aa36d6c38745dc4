"""The engine as one program instance sees it: all that it submits is known to be its own."""

from __future__ import annotations

from dataclasses import replace

from qpdsl.executor.requests.engine import Capabilities, Engine
from qpdsl.executor.requests.request import Owner, Request
from qpdsl.executor.requests.ticket import Ticket


class OwnedEngine:
    """An `Engine` that puts an owner on every request. Somebody else drives the engine behind it."""

    def __init__(self, engine: Engine, owner: Owner) -> None:
        self._engine = engine
        self._owner = owner

    def capabilities(self, model: str) -> Capabilities:
        return self._engine.capabilities(model)

    def submit(self, model: str, request: Request) -> Ticket:
        return self._engine.submit(model, replace(request, owner=self._owner))

    def busy(self, model: str) -> int:
        return self._engine.busy(model)

    async def drive(self) -> None:
        await self._engine.drive()
