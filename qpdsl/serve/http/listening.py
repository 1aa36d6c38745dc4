"""Runs the application on uvicorn, in one event loop with the engine, until a signal comes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType

import uvicorn

from qpdsl.errors import UsageError, reason
from qpdsl.serve.http.routes import ServerApp
from qpdsl.session import Session

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# What connections that have nothing to say any more are given to close.
_SECONDS_TO_CLOSE = 1
_BACKLOG = 2048


@dataclass(frozen=True, slots=True)
class Place:
    """Where the server listens: a port of 0 is any that is free. `certificate` and `key` are PEM files, for TLS."""

    host: str = "127.0.0.1"
    port: int = 8000
    certificate: str | None = None
    key: str | None = None
    key_password: str | None = None

    @property
    def local(self) -> bool:
        """Whether only programs of this machine reach it."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")

    def bound(self) -> socket.socket:
        """A socket that is bound there. Raises UsageError."""
        try:
            family = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0][0]
            return socket.create_server((self.host, self.port), family=family, backlog=_BACKLOG)
        except (OSError, OverflowError, UnicodeError) as error:
            busy = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
            help = "`--port 0` takes any port that is free" if busy else None
            why = reason(error) if isinstance(error, OSError) else str(error)
            raise UsageError(f"cannot listen at {self.host}:{self.port}: {why}", help) from error

    def url(self, bound: socket.socket) -> str:
        """The address that clients take as `base_url`."""
        host, port = bound.getsockname()[:2]
        scheme = "http" if self.certificate is None else "https"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}/v1"


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
