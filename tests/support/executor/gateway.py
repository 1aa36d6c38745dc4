"""An engine in front of others, as an inference gateway: each model is served by an engine of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from qpdsl.executor.requests.engine import Capabilities, Engine
from qpdsl.executor.requests.request import Request
from qpdsl.executor.requests.ticket import Ticket


class Gateway:
    """Serves each model by the engine that is named for it."""

    def __init__(self, engines: Mapping[str, Engine]) -> None:
        self._engines = engines

    def capabilities(self, model: str) -> Capabilities:
        return self._engines[model].capabilities(model)

    def submit(self, model: str, request: Request) -> Ticket:
        return self._engines[model].submit(model, request)

    def busy(self, model: str) -> int:
        return self._engines[model].busy(model)

    async def drive(self) -> None:
        await asyncio.gather(*(engine.drive() for engine in set(self._engines.values())))
