"""Several engines as one: each model is served by the engine that has it."""

from __future__ import annotations

import asyncio

from qpdsl.executor.requests.engine import Capabilities, Engine
from qpdsl.executor.requests.request import Request
from qpdsl.executor.requests.ticket import Ticket


class EngineGroup:
    """An `Engine` of several. `place` says which of them has a model; `first` has all for which nothing was said."""

    def __init__(self, first: Engine) -> None:
        self._first = first
        self._others: list[Engine] = []
        self._places: dict[str, Engine] = {}

    def place(self, model: str, engine: Engine) -> None:
        """Has requests to a model go to `engine`, which becomes one of the group. Not while `drive` runs."""
        self._places[model] = engine
        if engine is not self._first and engine not in self._others:
            self._others.append(engine)

    def of(self, model: str) -> Engine:
        """The engine that serves a model."""
        return self._places.get(model, self._first)

    def capabilities(self, model: str) -> Capabilities:
        return self.of(model).capabilities(model)

    def submit(self, model: str, request: Request) -> Ticket:
        return self.of(model).submit(model, request)

    def busy(self, model: str) -> int:
        return self.of(model).busy(model)

    async def drive(self) -> None:
        """Drives all of them side by side until it is cancelled, or one of them raises; then the others are ended."""
        if not self._others:
            await self._first.drive()
            return
        drivers = [asyncio.create_task(engine.drive()) for engine in (self._first, *self._others)]
        try:
            await asyncio.wait(drivers, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for driver in drivers:
                driver.cancel()
            ended = await asyncio.gather(*drivers, return_exceptions=True)
        failures = [end for end in ended if isinstance(end, BaseException)]
        others = [failure for failure in failures if not isinstance(failure, asyncio.CancelledError)]
        raise (others or failures or [RuntimeError("an engine stopped")])[0]
