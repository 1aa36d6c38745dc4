"""Runs the application on uvicorn, in one event loop with the engine, until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import time
from collections.abc import Callable, Iterator

import uvicorn

from qpdsl.serve.http.bind_address import BindAddress
from qpdsl.serve.http.routes import ServerApp
from qpdsl.session import Session

# What connections are given to close where no time to drain is left.
_SECONDS_TO_CLOSE = 1


class Listening:
    """Serves `app` from a bound socket. Told to stop, it lets requests that are there drain for `drain_seconds`."""

    def __init__(
        self, app: ServerApp, session: Session, address: BindAddress, bound: socket.socket, drain_seconds: float
    ) -> None:
        self._app = app
        self._session = session
        self._bound = bound
        self._drain_seconds = drain_seconds
        self.stopping = False
        self._stop = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        config = uvicorn.Config(
            app.asgi,
            lifespan="off",
            log_config=None,
            # What goes wrong in a request the application tells itself.
            log_level="critical",
            access_log=False,
            server_header=False,
            ssl_certfile=address.certificate,
            ssl_keyfile=address.key,
            ssl_keyfile_password=address.key_password,
        )
        self._server = _Uvicorn(config)

    def run(self, ready: Callable[[], None]) -> bool:
        """Serves until it is told to stop; `ready` is called when it listens. Whether all requests were answered."""
        return asyncio.run(self._run(ready))

    def stop(self) -> None:
        """Has it drain and end, from any thread; where it does not serve yet, as soon as it does."""
        self.stopping = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)

    async def _run(self, ready: Callable[[], None]) -> bool:
        self._loop = asyncio.get_running_loop()
        if self.stopping:
            self._stop.set()
        unsubscribe = self._session.events.subscribe(self._app.figures.see)
        try:
            async with self._session.running():
                return await self._serve(ready)
        finally:
            unsubscribe()

    async def _serve(self, ready: Callable[[], None]) -> bool:
        serving = asyncio.create_task(self._server.serve(sockets=[self._bound]))
        stopping = asyncio.create_task(self._stop.wait())
        try:
            while not self._server.started and not serving.done():
                await asyncio.sleep(0.01)
            if not serving.done():
                ready()
            await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
            drained, told = True, time.monotonic()
            if not serving.done():
                try:
                    await asyncio.wait_for(self._app.admission.drained(), self._drain_seconds)
                except TimeoutError:
                    drained = False
                    self._app.give_up()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._app.admission.drained(), _SECONDS_TO_CLOSE)
                # Answers that are known go out as fast as their clients read.
                left = self._drain_seconds - (time.monotonic() - told)
                self._server.config.timeout_graceful_shutdown = math.ceil(max(left, _SECONDS_TO_CLOSE))
                self._server.should_exit = True
            await serving
            return drained
        finally:
            stopping.cancel()
            serving.cancel()
            await asyncio.gather(stopping, serving, return_exceptions=True)


class _Uvicorn(uvicorn.Server):
    """Leaves signals to the command."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
