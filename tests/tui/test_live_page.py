"""The page of a run that goes on: what it answers, to whom, and that it ends with the run."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from qpdsl.cli.exits import Exit
from qpdsl.executor.events.events import Event
from qpdsl.tui.report.live_page import LivePage
from qpdsl.tui.report.page import ReportedRun
from qpdsl.tui.report.page import page as whole
from tests.support.cli import Run
from tests.support.tui.traces import BEAM, recorded


@contextmanager
def served(folder: Path, lines: list[str]) -> Iterator[tuple[LivePage, socket.socket]]:
    """A page of a run that has told these lines, and the run's end of the connection."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as run:
        run.bind(str(folder / "1.sock"))
        run.listen()
        page = LivePage(folder / "1.sock", "a run")
        thread = threading.Thread(target=page.serve, daemon=True)
        thread.start()
        connection, _ = run.accept()
        connection.sendall("".join(f"{line}\n" for line in lines).encode())
        try:
            yield page, connection
        finally:
            connection.close()
            page.close()
            thread.join()


def got(page: LivePage, path: str = "", host: str | None = None) -> tuple[int, str]:
    place = urlsplit(page.address)
    connection = HTTPConnection("127.0.0.1", place.port or 0, timeout=10)
    connection.request("GET", place.path + path, headers={"Host": host or place.netloc})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def until(page: LivePage, phase: str) -> dict[str, object]:
    """What is new, once the run has come so far."""
    end = time.monotonic() + 20
    while True:
        data: dict[str, object] = json.loads(got(page, "data")[1])
        if phase in str(data["phase"]) or time.monotonic() > end:
            return data
        time.sleep(0.02)


def test_it_answers_what_the_report_of_the_run_does(tmp_path: Path) -> None:
    lines = BEAM.read_text("utf-8").splitlines()
    half = len(lines) // 2
    with served(tmp_path, lines[:half]) as (page, run):
        begun = until(page, "running")
        assert begun["going"] is True and "At work" in str(begun["main"])
        status, html = got(page)
        assert status == 200 and "connect-src 'self'" in html and 'class="live"' in html
        run.sendall("".join(f"{line}\n" for line in lines[half:]).encode())
        ended = until(page, "done")
        assert ended["going"] is False
        assert str(ended["main"]) in whole(recorded(), [], "a run")


def test_whoever_does_not_know_its_address_gets_nothing(tmp_path: Path) -> None:
    with served(tmp_path, BEAM.read_text("utf-8").splitlines()[:3]) as (page, _):
        assert got(page)[0] == 200
        other = page.address.replace(page.address.rstrip("/").rpartition("/")[2], "x" * 32)
        assert urlsplit(page.address).hostname == "127.0.0.1"
        assert got(page, "../../etc/passwd")[0] == 404 and got(page, "nothing")[0] == 404
        assert page.answer(urlsplit(other).path, urlsplit(page.address).netloc) is None
        # A page of another origin whose name was pointed at this machine.
        assert got(page, host="evil.example")[0] == 404


def test_a_browser_that_goes_away_is_not_told_of(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with served(tmp_path, BEAM.read_text("utf-8").splitlines()) as (page, _):
        place = urlsplit(page.address)
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", place.port or 0)) as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.sendall(f"GET {place.path} HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n".encode())
        assert got(page)[0] == 200
        time.sleep(0.1)
    assert capfd.readouterr().err == ""


def test_a_run_that_is_gone_is_said_to_be(tmp_path: Path) -> None:
    with served(tmp_path, BEAM.read_text("utf-8").splitlines()[:40]) as (page, run):
        run.close()
        assert until(page, "the run is gone")["going"] is False


def test_a_page_that_fails_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = BEAM.read_text("utf-8").splitlines()[:41]
    added, add = 0, ReportedRun.add

    def fails(run: ReportedRun, event: Event) -> None:
        nonlocal added
        added += 1
        if added == 40:
            raise KeyError("a <row>")
        add(run, event)

    monkeypatch.setattr(ReportedRun, "add", fails)
    with served(tmp_path, lines) as (page, _):
        ended = until(page, "the page has failed")
        assert "KeyError: &#x27;a &lt;row&gt;&#x27;" in str(ended["phase"]) and ended["going"] is False


def test_what_is_no_run_is_said_to_be_none(tmp_path: Path) -> None:
    with served(tmp_path, ["nothing of qpdsl"]) as (page, _):
        assert until(page, "the run cannot be read")["going"] is False


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--live",), "no run of yours is going on"),
        (("--live", "mine"), "takes one process id"),
        (("--live", "--trees"), "takes no other option"),
        ((), "made of a trace or of saved runs"),
    ],
)
def test_what_cannot_be_served_is_refused(
    options: tuple[str, ...], said: str, qpdsl: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QPDSL_RUNTIME_DIR", str(tmp_path / "rt"))
    done = qpdsl("report", *options)
    assert done.code == Exit.USAGE and said in done.err
