"""Runs the application on uvicorn, in one event loop with the engine, until a signal comes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import uvicorn

from qpdsl.serve.http.place import Place
from qpdsl.serve.http.routes import ServerApp
from qpdsl.session import Session

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# What connections that have nothing to say any more are given to close.
_SECONDS_TO_CLOSE = 1


class Listening:
    """Serves `app` from a bound socket. A signal lets it drain for `drain_seconds`; a second one ends it at once."""

    def __init__(
        self, app: ServerApp, session: Session, place: Place, bound: socket.socket, drain_seconds: float
    ) -> None:
        self._app = app
        self._session = session
        self._bound = bound
        self._drain_seconds = drain_seconds
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
            timeout_graceful_shutdown=_SECONDS_TO_CLOSE,
            ssl_certfile=place.certificate,
            ssl_keyfile=place.key,
            ssl_keyfile_password=place.key_password,
        )
        self._server = _Uvicorn(config)

    def run(self, ready: Callable[[], None]) -> bool:
        """Serves until it is told to stop; `ready` is called when it listens. Whether all requests were answered."""
        return asyncio.run(self._run(ready))

    def stop(self) -> None:
        """Has it drain and end, from any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)

    async def _run(self, ready: Callable[[], None]) -> bool:
        self._loop = asyncio.get_running_loop()
        unsubscribe = self._session.events.subscribe(self._app.figures.see)
        try:
            async with self._session.running():
                with self._stopped_by_signals():
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
            drained = True
            if not serving.done():
                try:
                    await asyncio.wait_for(self._app.gate.drained(), self._drain_seconds)
                except TimeoutError:
                    drained = False
                    self._app.give_up()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._app.gate.drained(), _SECONDS_TO_CLOSE)
                self._server.should_exit = True
            await serving
            return drained
        finally:
            stopping.cancel()
            serving.cancel()
            await asyncio.gather(stopping, serving, return_exceptions=True)

    @contextlib.contextmanager
    def _stopped_by_signals(self) -> Iterator[None]:
        def handle(number: int, frame: FrameType | None) -> None:
            if self._stop.is_set():
                os._exit(128 + number)
            self.stop()

        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, handle) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _Uvicorn(uvicorn.Server):
    """Leaves signals to `Listening`."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
