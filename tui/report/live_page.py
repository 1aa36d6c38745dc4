"""The page of a run that goes on, served on this machine's loopback to whoever has its address, which holds a token.

The page asks for newer data every two seconds; they come from the same state as the dashboard's screens.
"""

from __future__ import annotations

import json
import secrets
import socket
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

from qpdsl.executor.events.trace import LineReader, TraceError
from qpdsl.tui.report.page import ReportedRun
from qpdsl.tui.state.compare import OtherRuns

_LOOPBACK = "127.0.0.1"
# Nothing of a run goes elsewhere, or is kept: the page has texts of the input and of the models.
_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class LivePage:
    """A server of the page of one run, whose events come from its socket at `path`, beside the last one of `runs`.

    It listens from the beginning. `address` is where the page is; without its token nothing is answered but that there
    is nothing, and so is what was asked of another host's name.
    """

    def __init__(self, path: Path, title: str, runs: OtherRuns | None = None) -> None:
        self._path, self._title = path, title
        self._run, self._reader = ReportedRun(runs), LineReader()
        self._lock = threading.Lock()
        # Why no more events come; empty while they do.
        self._over = ""
        self._known: tuple[tuple[str, int, str], str] | None = None
        self._token = secrets.token_urlsafe(24)
        self._server = _Server((_LOOPBACK, 0), _handler(self))

    @property
    def address(self) -> str:
        return f"http://{_LOOPBACK}:{self._server.server_port}/{self._token}/"

    def serve(self) -> None:
        """Answers until `close`."""
        threading.Thread(target=self._follow, name="qpdsl live page", daemon=True).start()
        self._server.serve_forever(poll_interval=0.1)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, path: str, host: str) -> tuple[str, str] | None:
        """The type and the text of what is at a path, None where that is nothing."""
        port = self._server.server_port
        token, _, rest = path.removeprefix("/").partition("/")
        if host not in (f"{_LOOPBACK}:{port}", f"localhost:{port}"):
            return None
        if not secrets.compare_digest(token.encode(), self._token.encode()):
            return None
        if rest == "":
            return "text/html; charset=utf-8", self._drawn("page")
        if rest == "data":
            return "application/json", self._drawn("data")
        return None

    def _drawn(self, what: Literal["page", "data"]) -> str:
        """The whole page, or what is new on it, as it was drawn after the latest event."""
        with self._lock:
            run, stamp = self._run, (what, self._run.state.changes, self._over)
            if self._known is None or self._known[0] != stamp:
                state = run.state
                preparing = state.step if state.phase == "preparing" else None
                run.open_end = self._over or preparing or state.phase
                run.notes = self._reader.findings.notes()
                going = not self._over and state.ended is None
                data = {"going": going, "phase": run.phase, "main": run.main} if what == "data" else {}
                drawn = json.dumps(data) if what == "data" else run.page(self._title, live=True)
                self._known = stamp, drawn
            return self._known[1]

    def _follow(self) -> None:
        """Takes the run's events until there are no more, and says why there are not."""
        over = "the run is gone"
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.connect(str(self._path))
                with connection.makefile("rb") as lines:
                    for line in lines:
                        # What was skipped is told under the lock, too.
                        with self._lock:
                            event = self._reader.read(line.decode("utf-8", errors="replace"))
                            if event is not None:
                                self._run.add(event)
        except OSError:
            pass
        except TraceError as error:
            over = f"the run cannot be read: {error}"
        except Exception as error:
            over = "the page has failed, and the run goes on: " + " ".join(f"{type(error).__name__}: {error}".split())
        with self._lock:
            self._over = over


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle of an answer is no news."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def _handler(page: LivePage) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = page.answer(self.path, self.headers.get("Host", ""))
            if found is None:
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            kind, text = found
            body = text.encode()
            self.send_response(HTTPStatus.OK)
            for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **_HEADERS}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """What was asked holds the token, and goes nowhere."""

    return Handler
