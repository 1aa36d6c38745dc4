"""HTTP to a server: what comes back, and how it goes wrong."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.remote.server import connection as connections
from qpdsl.executor.remote.server.connection import Connection, ServerSentEvents, key_of, variable_of
from qpdsl.executor.remote.server.failures import Refused, Unreachable

URL = "http://127.0.0.1:8000/v1"


class Bytes(httpx.AsyncByteStream):
    """A body in pieces; it says when it is closed."""

    def __init__(self, *pieces: bytes, failure: Exception | None = None) -> None:
        self._pieces, self._failure = pieces, failure
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece
        if self._failure is not None:
            raise self._failure

    async def aclose(self) -> None:
        self.closed = True


def asked(
    answer: httpx.Response | Exception, use: Callable[[Connection], Awaitable[Any]], url: str = URL
) -> tuple[Any, list[httpx.Request]]:
    """What `use` of a connection gives whose server answers so, and what it was sent."""
    requests: list[httpx.Request] = []

    async def handle(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def main() -> Any:
        connection = Connection(url, httpx.MockTransport(handle))
        try:
            return await use(connection)
        finally:
            await connection.close()

    return asyncio.run(main()), requests


async def post(connection: Connection) -> Any:
    return await connection.post("completions", {"prompt": "é"})


async def events(connection: Connection) -> list[Any]:
    return [event async for event in connection.stream("completions", {})]


def failure(answer: httpx.Response | Exception) -> Refused | Unreachable:
    with pytest.raises((Refused, Unreachable)) as raised:
        asked(answer, post)
    return raised.value


class Dripping(httpx.AsyncByteStream):
    """A body that comes a little at a time, without an end."""

    def __init__(self, piece: bytes) -> None:
        self._piece = piece

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            yield self._piece
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("piece", "form", "use"),
    [
        (b" ", "application/json", post),
        (b'{"a": 1, ', "application/json", post),
        (b": still here\n\n", "text/event-stream", events),
        (b"data: {", "text/event-stream", events),
        (b" ", "application/json", events),
        (b"x", "text/plain", lambda connection: connection.text("/metrics")),
    ],
)
def test_an_answer_that_drips_is_given_up(piece: bytes, form: str, use: Any) -> None:
    answer = httpx.Response(200, headers={"content-type": form}, stream=Dripping(piece))

    async def within(connection: Connection) -> Any:
        connection.stall = 0.1
        async with asyncio.timeout(5):
            return await use(connection)

    with pytest.raises(Unreachable, match="stopped responding") as raised:
        asked(answer, within)
    assert raised.value.stalled


def test_an_error_that_drips_is_told_as_far_as_it_came() -> None:
    answer = httpx.Response(400, headers={"content-type": "text/plain"}, stream=Dripping(b"no "))

    async def within(connection: Connection) -> Any:
        connection.stall = 0.1
        return await post(connection)

    with pytest.raises(Refused, match="answered 400: no no no"):
        asked(answer, within)


def test_a_stream_whose_events_come_in_time_goes_on() -> None:
    async def slowly() -> AsyncIterator[bytes]:
        for number in range(8):
            await asyncio.sleep(0.04)
            yield b"data: %d\n\n" % number

    answer = httpx.Response(200, headers={"content-type": "text/event-stream"}, content=slowly())

    async def within(connection: Connection) -> Any:
        connection.stall = 0.2
        return await events(connection)

    assert asked(answer, within)[0] == list(range(8))


def test_paths_stand_under_the_url_or_under_the_root() -> None:
    async def use(connection: Connection) -> None:
        await connection.post("completions", {})
        await connection.post("/tokenize", {})
        await connection.get("models")

    _, requests = asked(httpx.Response(200, json={}), use, "http://host:1/prefix/v1/")
    assert [str(request.url) for request in requests] == [
        "http://host:1/prefix/v1/completions",
        "http://host:1/prefix/tokenize",
        "http://host:1/prefix/v1/models",
    ]


def test_a_key_goes_along_to_its_origin_and_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QPDSL_API_KEYS", "http://127.0.0.1:8000=sesame")
    _, (request,) = asked(httpx.Response(200, json={}), post)
    assert request.headers["authorization"] == "Bearer sesame"
    _, (request,) = asked(httpx.Response(200, json={}), post, "http://127.0.0.1:8001/v1")
    assert "authorization" not in request.headers
    error = failure(httpx.Response(401, json={"error": {"message": "the key sesame is wrong"}}))
    assert isinstance(error, Refused) and "sesame" not in str(error)
    assert 'rejected the key: set QPDSL_API_KEYS="http://127.0.0.1:8000=KEY"' in str(error)


def test_no_redirect_is_followed() -> None:
    error = failure(httpx.Response(307, headers={"location": "http://evil.example/v1/completions"}))
    assert isinstance(error, Refused) and str(error).endswith(
        "redirects, which is not followed: the model may be at http://evil.example"
    )


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error": {"message": "too long", "code": 400}}', "answered 400: too long"),
        (b'{"detail": [{"msg": "no"}]}', 'answered 400: [{"msg": "no"}]'),
        (b'{"object": "error", "message": "no such field"}', "answered 400: no such field"),
        (b"plain\ntext", "answered 400: plain text"),
        (b"<html>much</html>", "answered 400"),
        (b"x" * 5000, "x…"),
    ],
)
def test_the_servers_words(body: bytes, words: str) -> None:
    error = failure(httpx.Response(400, content=body))
    assert isinstance(error, Refused) and str(error).endswith(words)


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504])
def test_what_passes_is_tried_again(status: int) -> None:
    error = failure(httpx.Response(status, headers={"retry-after": "3"}))
    assert isinstance(error, Unreachable) and (error.status, error.retry_after) == (status, 3.0)
    assert error.overloaded == (status in (429, 503))


def test_money_that_is_spent_does_not_come_back() -> None:
    error = failure(httpx.Response(429, json={"error": {"message": "pay", "code": "insufficient_quota"}}))
    assert isinstance(error, Refused)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("Wed, 21 Oct 2015 07:28:00 GMT", 0.0), ("1.5", 1.5), ("-3", 0.0), ("soon", None), ("", None)],
)
def test_when_to_come_again(header: str, seconds: float | None) -> None:
    error = failure(httpx.Response(429, headers={"retry-after": header}))
    assert isinstance(error, Unreachable) and error.retry_after == seconds


@pytest.mark.parametrize(
    "error",
    [
        httpx.ConnectError("refused"),
        httpx.ConnectTimeout("slow"),
        httpx.ReadError("reset"),
        httpx.RemoteProtocolError("peer closed connection"),
    ],
)
def test_sockets_that_fail_are_tried_again(error: Exception) -> None:
    found = failure(error)
    assert isinstance(found, Unreachable) and not found.overloaded and URL in str(found)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_server_that_does_not_run_is_said(host: str) -> None:
    async def ask(port: int) -> str:
        connection = Connection(f"http://{host}:{port}/v1")
        try:
            with pytest.raises(Unreachable) as raised:
                await connection.get("models")
        finally:
            await connection.close()
        return str(raised.value)

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    assert "no server listens there" in asyncio.run(ask(port))


def test_how_to_start_a_server_of_this_machine_is_said() -> None:
    refused = httpx.ConnectError("All connection attempts failed")
    refused.__cause__ = ExceptionGroup("each address", [ConnectionRefusedError(), ConnectionRefusedError()])
    with pytest.raises(Unreachable, match="`ollama serve` starts it"):
        asked(refused, post, "http://localhost:11434/v1")


def test_a_stall_counts_as_too_much_work() -> None:
    found = failure(httpx.ReadTimeout(""))
    assert isinstance(found, Unreachable) and found.overloaded


def test_half_a_json_is_tried_again_and_a_page_is_not() -> None:
    json_type = {"content-type": "application/json"}
    assert isinstance(failure(httpx.Response(200, headers=json_type, content=b'{"choices": [')), Unreachable)
    page = failure(httpx.Response(200, headers={"content-type": "text/html"}, content=b"<html>"))
    assert isinstance(page, Refused) and "answered with `text/html`" in str(page)


def test_an_answer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_LONGEST", 100)
    found = failure(httpx.Response(200, stream=Bytes(*[b"x" * 60] * 3)))
    assert isinstance(found, Refused)


def test_a_stream_in_pieces() -> None:
    text = "".join(f"data: {json.dumps({'text': piece}, ensure_ascii=False)}\n\n" for piece in ("é", "😀"))
    whole = text.encode() + b"data: [DONE]\n\ndata: no more\n\n"
    body = Bytes(*(whole[at : at + 3] for at in range(0, len(whole), 3)))
    answer = httpx.Response(200, headers={"content-type": "text/event-stream; charset=utf-8"}, stream=body)
    found, _ = asked(answer, events)
    assert found == [{"text": "é"}, {"text": "😀"}] and body.closed


def test_a_server_that_does_not_stream_gives_its_answer_at_once() -> None:
    assert asked(httpx.Response(200, json={"text": "all"}), events)[0] == [{"text": "all"}]


def test_a_stream_that_is_left_is_closed() -> None:
    body = Bytes(*[b'data: {"text": "x"}\n\n'] * 5)

    async def first(connection: Connection) -> Any:
        stream = connection.stream("completions", {})
        event = await anext(stream)
        await stream.aclose()
        return event

    answer = httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=body)
    assert asked(answer, first)[0] == {"text": "x"} and body.closed


def test_a_stream_that_breaks_off() -> None:
    for pieces in ([b'data: {"text"', b": \n\n"], [b'data: {"text": "x"}\n\n']):
        body = Bytes(*pieces, failure=httpx.RemoteProtocolError("incomplete chunked read"))
        answer = httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=body)
        with pytest.raises(Unreachable):
            asked(answer, events)


def test_a_key_goes_to_its_origin_alone() -> None:
    environment = {"OPENAI_API_KEY": "sk-1", "QPDSL_API_KEYS": "https://host:8000=two  http://127.0.0.1:9=three="}
    environment |= {"ANTHROPIC_API_KEY": "sk-ant", "OPENROUTER_API_KEY": "sk-or"}
    assert key_of("https://api.openai.com/v1", environment) == "sk-1"
    assert key_of("https://api.anthropic.com/v1", environment) == "sk-ant"
    assert key_of("https://openrouter.ai/api/v1", environment) == "sk-or"
    assert key_of("https://host:8000/v1", environment) == "two"
    assert key_of("http://127.0.0.1:9/v1", environment) == "three="
    for other in (
        "http://api.openai.com/v1",
        "https://api.openai.com:444/v1",
        "https://host/v1",
        "http://host:8000/v1",
    ):
        assert key_of(other, environment) is None
    assert key_of("https://api.openai.com.example/v1", environment) is None


def test_the_base_url_has_the_same_key() -> None:
    environment = {"OPENAI_API_KEY": "sk-1", "OPENAI_BASE_URL": "https://proxy.example/v1"}
    assert key_of("https://proxy.example/other", environment) == "sk-1"
    assert key_of("https://proxy.example:8443/v1", environment) is None
    assert variable_of("https://proxy.example/v1", environment) == "OPENAI_API_KEY"


def test_what_to_set_is_said_and_no_key_is_shown() -> None:
    assert variable_of("http://127.0.0.1:8000/v1", {}) == 'QPDSL_API_KEYS="http://127.0.0.1:8000=KEY"'
    with pytest.raises(ModelError) as raised:
        key_of("http://127.0.0.1:8000/v1", {"QPDSL_API_KEYS": "secret"})
    assert "QPDSL_API_KEYS" in str(raised.value) and "secret" not in str(raised.value)
    with pytest.raises(ModelError, match="invalid characters"):
        key_of("https://api.openai.com/v1", {"OPENAI_API_KEY": "sk\n1"})
    with pytest.raises(ModelError, match="needs a key: set `ANTHROPIC_API_KEY`"):
        key_of("https://api.anthropic.com/v1", {"OPENAI_API_KEY": "sk-1"})


_STREAM = (
    ': ping\r\nevent: x\r\ndata: {"text": "Größe 😀"}\r\n\r\n'
    "data:one\rdata: two\r\r\n\ndata: last\n\nid: 3\n\n: end\n\n"
).encode()
_EVENTS = ['{"text": "Größe 😀"}', "one\ntwo", "last"]


@given(st.lists(st.integers(0, len(_STREAM)), max_size=12))
def test_however_it_is_cut(cuts: list[int]) -> None:
    events, found = ServerSentEvents(), []
    places = [0, *sorted(cuts), len(_STREAM)]
    for start, end in itertools.pairwise(places):
        found += events.push(_STREAM[start:end])
    assert found == _EVENTS


def test_an_event_that_does_not_end_is_none() -> None:
    assert ServerSentEvents().push(b'data: {"text": "half"}\n') == []
