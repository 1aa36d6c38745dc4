"""Connections that say nothing, or nothing that is HTTP, or come in crowds."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import time
from collections.abc import Iterator

import pytest

pytest.importorskip("starlette", reason="serving needs qpdsl[serve]")
pytest.importorskip("uvicorn", reason="serving needs qpdsl[serve]")

from qpdsl.serve.http.connection import ClientConnection
from qpdsl.serve.http.listening import LoopTroubles
from qpdsl.serve.http.routes import Limits
from tests.support.serving.running_server import Running, running

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
BODY = json.dumps({"model": "llm", "prompt": "1 + 1 =", "max_tokens": 1}).encode()
SECONDS = 0.4


@pytest.fixture(scope="module")
def brief() -> Iterator[Running]:
    """A server that waits for little."""
    with running([], expose=["llm=zoo/counting"], limits=Limits(receive=SECONDS), max_connections=8) as server:
        yield server


@contextlib.contextmanager
def connected(server: Running) -> Iterator[socket.socket]:
    host, port = server.root.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        yield connection


def said(connection: socket.socket) -> bytes:
    """All that comes until the server closes."""
    parts = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(1 << 16):
            parts += part
    return parts


def statuses(answer: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+)", answer)]


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (b"", None, None),
        (HEAD[:40], 408, "head_too_slow"),
        (HEAD + b"Content-Length: 4000\r\n\r\n{", 408, "body_too_slow"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n", 408, "body_too_slow"),
    ],
)
def test_what_does_not_come_in_time(brief: Running, sent: bytes, status: int | None, code: str | None) -> None:
    with connected(brief) as connection:
        began = time.monotonic()
        connection.sendall(sent)
        answer = said(connection)
        assert SECONDS * 0.9 <= time.monotonic() - began < SECONDS + 5
    assert statuses(answer) == ([] if status is None else [status])
    if code is not None:
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == code


def test_a_head_that_drips(brief: Running) -> None:
    """Each byte does not begin the time anew, nor on a connection that has served before."""
    with connected(brief) as connection:
        connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY)
        assert statuses(connection.recv(1 << 16)) == [200]
        began = time.monotonic()
        with contextlib.suppress(OSError):
            for byte in HEAD:
                connection.sendall(bytes([byte]))
                time.sleep(0.02)
                if time.monotonic() - began > SECONDS + 5:
                    break
        assert time.monotonic() - began < SECONDS + 5


@pytest.mark.parametrize(
    "bad", [b"zz\r\nabc\r\n", b"5\r\nab", b"-1\r\n", b"ffffffffffffffffffffff\r\n", b"1\r\nxyz", b"\x00\r\n"]
)
def test_chunks_that_are_none(brief: Running, bad: bytes) -> None:
    with connected(brief) as connection:
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        time.sleep(0.05)
        connection.sendall(bad)
        assert statuses(said(connection)) in ([400], [408])
    assert brief.told == []


@pytest.mark.parametrize("bad", [b"\x16\x03\x01\x02\x00", b"GET / HTTPS\r\n\r\n", b"\r\n\r\n\r\nhello there\r\n\r\n"])
def test_what_is_not_http(brief: Running, bad: bytes) -> None:
    with connected(brief) as connection:
        connection.sendall(bad)
        answer = said(connection)
    assert statuses(answer) in ([400], [408])
    assert "error" in json.loads(answer.partition(b"\r\n\r\n")[2])
    assert brief.told == []


def test_a_length_and_chunks_together(brief: Running) -> None:
    """A server before this one may go by the other of the two, and take what follows for the next request."""
    smuggled = b"0\r\n\r\nGET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connected(brief) as connection:
        connection.sendall(HEAD + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n" + smuggled)
        assert statuses(said(connection)) == [400]


class Sending:
    """A transport that has `left` bytes to send, one number for each look at it, and the last one from then on."""

    def __init__(self, left: list[int]) -> None:
        self._left = left
        self.aborted = asyncio.Event()

    def get_write_buffer_size(self) -> int:
        return self._left.pop(0) if len(self._left) > 1 else self._left[0]

    def get_extra_info(self, name: str) -> socket.socket:
        # It has no descriptor any more.
        gone = socket.socket()
        gone.close()
        return gone

    def abort(self) -> None:
        self.aborted.set()


def test_a_client_that_takes_nothing_more_is_cut_off() -> None:
    async def check() -> None:
        left = [60, 60, 50, 50, 50, 40, 40, 40, 30, 30, 30]
        transport = Sending(left)
        connection = ClientConnection.__new__(ClientConnection)
        connection.loop, connection.unread = asyncio.get_running_loop(), 0.01
        connection.transport = transport  # type: ignore[assignment]
        connection._watch()
        await asyncio.wait_for(transport.aborted.wait(), 10)
        assert left == [30]

    asyncio.run(check())


def test_too_many_connections(brief: Running) -> None:
    with contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(connected(brief)) for _ in range(12)]
        answers = []
        for connection in crowd:
            connection.settimeout(0.02)
            with contextlib.suppress(TimeoutError):
                answers.append(said(connection))
        answers = [answer for answer in answers if answer]
        assert 4 <= len(answers) <= 6
        assert all(statuses(answer) == [503] and b"too_many_connections" in answer for answer in answers)
    time.sleep(0.1)
    assert brief.client.get(f"{brief.root}/healthz").status_code == 200


def test_troubles_of_the_loop_are_told_once_a_minute() -> None:
    async def check() -> list[str]:
        told: list[str] = []
        troubles = LoopTroubles(told.append, seconds=0.05)
        loop = asyncio.get_running_loop()
        context = {"message": "socket.accept() out of system resource", "exception": OSError(24, "Too many open files")}
        for _ in range(1000):
            troubles.handle(loop, context)
        await asyncio.sleep(0.06)
        troubles.handle(loop, context)
        return told

    first, second = asyncio.run(check())
    assert "Too many open files" in first and "999 times before" in second
