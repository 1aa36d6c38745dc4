"""Runs the application on uvicorn, in one event loop with the engine, until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import resource
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import uvicorn

from qpdsl.errors import UsageError, reason
from qpdsl.executor.events.stream import EventStream
from qpdsl.executor.requests import engine_loop
from qpdsl.serve.completion_request import Refusal
from qpdsl.serve.http.connection import ClientConnection
from qpdsl.serve.http.routes import ServerApp
from qpdsl.serve.http.server_figures import Busy

# What connections are given to close where no time to drain is left.
_SECONDS_TO_CLOSE = 1
# A client that keeps a connection, as most do for five seconds, does not send on one that is just being closed.
_IDLE_SECONDS = 60
_MAX_TROUBLES = 64
_ENGINE_FAILED = Refusal(
    "the engine has failed, and the server is ending", status=503, code="engine_failed", retry_after=10
)


class Answering(Protocol):
    """What answers the requests: a session, or replicas."""

    @property
    def events(self) -> EventStream: ...

    @property
    def engine(self) -> Busy: ...

    def running(self) -> AbstractAsyncContextManager[None]:
        """Requests are answered while the block runs; what stops that is raised there."""


class Listening:
    """Serves `app` from a bound socket, over up to `max_connections`.

    Told to stop, it lets requests that are there drain for `drain_seconds`. `tell` gets what
    it waits for then, and what goes wrong beside requests, in words.
    """

    def __init__(
        self,
        app: ServerApp,
        session: Answering,
        address: BindAddress,
        bound: socket.socket,
        drain_seconds: float,
        max_connections: int = 1024,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._app = app
        self._session = session
        self._bound = bound
        self._drain_seconds = drain_seconds
        self._tell = tell
        self._troubles = LoopTroubles(tell)
        self.stopping = False
        self._stop = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        config = uvicorn.Config(
            app,
            http=ClientConnection.bounded(max_connections, app.limits.receive, app.limits.unread),
            ws="none",
            proxy_headers=False,
            timeout_keep_alive=_IDLE_SECONDS,
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
        """Serves until it is told to stop; `ready` is called when it listens. Whether all requests were answered.

        What stops the engine is raised, once all requests have had an answer that says so.
        """
        return engine_loop.run(self._run(ready))

    def stop(self) -> None:
        """Has it drain and end, from any thread; where it does not serve yet, as soon as it does."""
        self.stopping = True
        if self._loop is not None:
            # It has ended already where its loop is closed.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stop.set)

    async def _run(self, ready: Callable[[], None]) -> bool:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._troubles.handle)
        if self.stopping:
            self._stop.set()
        unsubscribe = self._app.figures.follow(self._session.events, self._session.engine)
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
            try:
                await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                # Only the engine's end comes to this.
                self._app.admission.give_up(_ENGINE_FAILED)
                await self._close(serving, _SECONDS_TO_CLOSE)
                raise
            drained, told = True, time.monotonic()
            if not serving.done():
                if count := self._app.admission.running + self._app.admission.waiting:
                    what = f"{count:,} request{'s' * (count > 1)}, up to {self._drain_seconds:g} s"
                    self._tell(f"finishing {what}; Ctrl-C again ends at once")
                try:
                    await asyncio.wait_for(self._app.admission.drained(), self._drain_seconds)
                except TimeoutError:
                    drained = False
                    self._app.admission.give_up()
                # Answers that are known go out as fast as their clients read.
                left = self._drain_seconds - (time.monotonic() - told)
                await self._close(serving, max(left, _SECONDS_TO_CLOSE))
            await serving
            return drained
        finally:
            stopping.cancel()
            serving.cancel()
            await asyncio.gather(stopping, serving, return_exceptions=True)

    async def _close(self, serving: asyncio.Task[None], seconds: float) -> None:
        """Ends the server once all have their answers, or after so long."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._app.admission.drained(), _SECONDS_TO_CLOSE)
        self._server.config.timeout_graceful_shutdown = math.ceil(seconds)
        self._server.should_exit = True
        await serving


class LoopTroubles:
    """Tells what goes wrong in the event loop beside requests, such as that no connection can be accepted.

    The same is told once in `seconds`, with how often it came.
    """

    def __init__(self, tell: Callable[[str], None], seconds: float = 60.0) -> None:
        self._tell = tell
        self._seconds = seconds
        self._told: dict[str, float] = {}
        self._untold: Counter[str] = Counter()

    def handle(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """For `set_exception_handler`."""
        what, error = str(context.get("message", "error")), context.get("exception")
        now = loop.time()
        if now - self._told.get(what, -math.inf) < self._seconds:
            self._untold[what] += 1
            return
        if len(self._told) >= _MAX_TROUBLES:
            self._told.clear()
        self._told[what] = now
        cause = "" if error is None else f": {type(error).__name__}: {error}"
        again = f" (and {self._untold.pop(what):,} times before)" if what in self._untold else ""
        self._tell(f"warning: {what}{cause}{again}")


def allow_descriptors(most: int = 65_535) -> int:
    """Raises the soft limit of open files as far as the hard one allows; the limit now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if soft == resource.RLIM_INFINITY else soft


class _Uvicorn(uvicorn.Server):
    """Leaves signals to the command."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


# Connections that wait to be accepted while the engine computes a step.
_BACKLOG = 2048


@dataclass(frozen=True, slots=True)
class BindAddress:
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
        """A socket that is bound there. Raises UsageError, also where the files for TLS are none."""
        self._check_tls()
        try:
            family = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0][0]
            bound = socket.create_server((self.host, self.port), family=family, backlog=_BACKLOG)
            # Connections inherit it. Without it what follows a first packet waits for the client's acknowledgement.
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return bound
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

    def _check_tls(self) -> None:
        if self.certificate is None:
            return
        try:
            # Without a password the library would ask for one on the terminal.
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
                self.certificate, self.key, self.key_password or ""
            )
        except FileNotFoundError as error:
            missing = [file for file in (self.certificate, self.key) if file is not None and not Path(file).is_file()]
            raise UsageError(f"there is no file `{(missing or [self.certificate])[0]}`") from error
        except (OSError, ValueError) as error:
            files = "`--tls-cert`" if self.key is None else "`--tls-cert` and `--tls-key`"
            raise UsageError(f"{files} cannot be used: {getattr(error, 'reason', None) or error}") from error
