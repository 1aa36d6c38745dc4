"""Runs that are going on: each serves its events on a socket, in a folder that only its user can enter."""

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
    from qpdsl.executor.events.stream import EventStream
    from qpdsl.executor.events.trace import Feed

_CLIENTS = 8
_SECONDS_FOR_A_SLOW_CLIENT = 5.0


def folder() -> Path:
    """The folder of the sockets, created if missing. Raises UsageError unless it is the user's own, mode 0700."""
    chosen = os.environ.get("QPDSL_RUNTIME_DIR")
    base = os.environ.get("XDG_RUNTIME_DIR")
    if chosen:
        path = Path(chosen)
    elif base and os.path.isdir(base):
        path = Path(base) / "qpdsl"
    else:
        path = Path(tempfile.gettempdir()) / f"qpdsl-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, parents=chosen is not None, exist_ok=True)
        status = path.lstat()
    except OSError as error:
        raise UsageError(f"cannot use the folder `{path}`: {reason(error)}") from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
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


def live_runs() -> list[LiveRun]:
    """The runs that are going on, latest first. Sockets of runs that died are removed. Raises UsageError."""
    runs = []
    for path in folder().glob("*.sock"):
        if path.stem.isdigit() and path.is_socket():
            if _answers(path):
                runs.append(LiveRun(int(path.stem), path, path.stat().st_mtime))
            elif not _alive(int(path.stem)):
                path.unlink(missing_ok=True)
    return sorted(runs, key=lambda run: -run.started)


def chosen_run(pid: int | None) -> LiveRun:
    """The run of a process, or the latest. Raises UsageError where there is none."""
    runs = live_runs()
    if not runs:
        raise UsageError("no run of yours is going on", "`qpdsl run … --tui` starts one and watches it")
    if pid is None:
        return runs[0]
    run = next((run for run in runs if run.pid == pid), None)
    if run is None:
        raise UsageError(f"no run of yours has the process id {pid}", "`qpdsl top --list` lists them")
    return run


class Server:
    """Serves a run's events to whoever attaches. Raises OSError and UsageError where there can be no socket."""

    def __init__(self, stream: EventStream) -> None:
        self.path = folder() / f"{os.getpid()}.sock"
        if self.path.is_socket():
            self.path.unlink()
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
        """Sends the clients the events that they have not had yet, and closes."""
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
        from qpdsl.executor.events.trace import Feed

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
