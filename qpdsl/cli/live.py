"""Runs that are going on: each listens on a socket in a folder that only its user can enter."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from qpdsl.errors import UsageError, reason

if TYPE_CHECKING:
    from qpdsl.executor.events.feed import Feed
    from qpdsl.executor.events.stream import EventStream

_CLIENTS = 8
_SECONDS_FOR_A_SLOW_CLIENT = 5.0


def folder() -> Path:
    """Where the sockets lie, made if need be: mode 0700 and the user's own. Raises UsageError where it is not."""
    given = os.environ.get("QPDSL_RUNTIME_DIR")
    base = os.environ.get("XDG_RUNTIME_DIR")
    if given:
        path = Path(given)
    elif base and os.path.isdir(base):
        path = Path(base) / "qpdsl"
    else:
        path = Path(tempfile.gettempdir()) / f"qpdsl-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, parents=given is not None, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise UsageError(f"cannot use the folder `{path}`: {reason(error)}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise UsageError(
            f"`{path}` is not a folder of yours alone (mode 0700)", "QPDSL_RUNTIME_DIR names another one to use"
        )
    return path


@dataclass(frozen=True, slots=True)
class LiveRun:
    """A run that can be attached to."""

    pid: int
    socket: Path
    started: float


def runs() -> list[LiveRun]:
    """The runs that go on, latest first; what dead ones left behind is taken away. Raises UsageError."""
    found = []
    for path in folder().glob("*.sock"):
        if path.stem.isdigit():
            if _answers(path):
                found.append(LiveRun(int(path.stem), path, path.stat().st_mtime))
            elif not _alive(int(path.stem)):
                path.unlink(missing_ok=True)
    return sorted(found, key=lambda run: -run.started)


class Server:
    """Serves a run's events to whoever attaches. Raises OSError and UsageError where there can be no socket."""

    def __init__(self, stream: EventStream) -> None:
        self.path = folder() / f"{os.getpid()}.sock"
        self.path.unlink(missing_ok=True)
        self._stream = stream
        self._clients: list[tuple[socket.socket, Feed]] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # Nobody else can enter the folder, so there is no moment at which the wider mode matters.
            self._listener.bind(str(self.path))
            self.path.chmod(0o600)
            self._listener.listen(_CLIENTS)
        except OSError:
            self._listener.close()
            raise
        self._closing = False
        self._thread = threading.Thread(target=self._accept, name="qpdsl server", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Sends what the clients have not had yet, and goes."""
        self._closing = True
        self.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(1.0)
        for connection, feed in self._clients:
            feed.close(_SECONDS_FOR_A_SLOW_CLIENT)
            connection.close()

    def _accept(self) -> None:
        from qpdsl.executor.events.feed import Feed

        while not self._closing:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            for gone in [pair for pair in self._clients if not pair[1].alive]:
                gone[0].close()
                self._clients.remove(gone)
            if len(self._clients) == _CLIENTS:
                connection.close()
                continue
            connection.settimeout(_SECONDS_FOR_A_SLOW_CLIENT)
            self._clients.append((connection, Feed(self._stream, connection.sendall, history=True)))


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
