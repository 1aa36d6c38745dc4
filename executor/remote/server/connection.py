"""HTTP to one server: JSON out, JSON or a stream of events in. It tries once; `retries.py` says when to try again."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.remote.server.failures import MAX_WORDS, PASSING, Refused, ServerError, Unreachable
from qpdsl.executor.remote.server.key_in_text import without_key

# Seconds to reach a server at all, and between two pieces of what is sent.
_CONNECT, _WRITE = 10.0, 60.0
# Seconds after which an idle socket is closed: servers do that too (uvicorn after 5), and then a request meets no one.
_IDLE = 4.0
# Seconds after which a whole answer is given up, and a stream whose last event came so long ago.
STALL = 300.0
# No answer is longer, in bytes.
_LONGEST = 64 << 20
# Of the server's own troubles, those that stay: it does not know the method, or this version of HTTP.
_FOREVER = frozenset({501, 505})
_SPENT = "insufficient_quota"


T = TypeVar("T")


class _Late(Exception):
    """The time of an answer is over."""


class AnswerClock:
    """The time that an answer has, from its start or from when it told something last."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.restart()

    def restart(self) -> None:
        self._end = asyncio.get_running_loop().time() + self._seconds

    async def within(self, work: Awaitable[T], more: float = 0.0) -> T:
        """The result of what takes no longer, or `more` seconds longer. Raises _Late."""
        limit = asyncio.timeout_at(self._end + more)
        try:
            async with limit:
                return await work
        except TimeoutError:
            if limit.expired():
                raise _Late from None
            raise

    async def each(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Each of what comes. Raises _Late."""
        while True:
            try:
                piece = await self.within(anext(pieces))
            except StopAsyncIteration:
                return
            yield piece


class Connection:
    """A server under `url`. It has one pool of sockets, made at the first request and closed by `close`.

    A path that begins with "/" stands under the server's root, which is the URL without a `/v1` at its end; another
    one stands under the URL. The key goes to the URL's own origin: no redirect is followed. `stall`: seconds that a
    whole answer may take, or the next event of a stream; bytes that tell nothing, comments among them, give it no more.
    Raises ModelError where the environment's keys cannot be read.
    """

    def __init__(self, url: str, transport: httpx.AsyncBaseTransport | None = None, stall: float = STALL) -> None:
        self.url = url.rstrip("/")
        self.root = self.url.removesuffix("/v1")
        self._transport = transport
        self.stall = stall
        self._key = key_of(url)
        self._client: httpx.AsyncClient | None = None

    async def get(self, path: str) -> Any:
        """The JSON of an answer. Raises Refused, Unreachable."""
        async with self._answer("GET", path, None) as (response, clock):
            return await self._json(response, clock)

    async def text(self, path: str) -> str:
        """An answer that is text, such as a server's metrics. Raises Refused, Unreachable."""
        async with self._answer("GET", path, None) as (response, clock):
            return b"".join([piece async for piece in self._pieces(response, clock)]).decode("utf-8", "replace")

    async def post(self, path: str, body: Mapping[str, Any], stall: float | None = None) -> Any:
        """The JSON of an answer to a JSON body; `stall` where it may take longer. Raises Refused, Unreachable."""
        async with self._answer("POST", path, body, stall) as (response, clock):
            return await self._json(response, clock)

    async def stream(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[Any, None]:
        """The JSON of each event of an answer, as it comes; of one that is no stream, its own.

        Closing the generator closes the socket, which tells the server to stop. That the last event is the end of the
        answer is for the caller to see. Raises Refused, Unreachable.
        """
        async with self._answer("POST", path, body) as (response, clock):
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                yield await self._json(response, clock)
                return
            events = ServerSentEvents()
            async for piece in self._pieces(response, clock):
                for data in events.push(piece):
                    if data.strip() == "[DONE]":
                        return
                    yield self._event(data)
                    clock.restart()

    async def close(self) -> None:
        """Closes all sockets; the next request opens new ones."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def without_key(self, text: str) -> str:
        """What is to be shown of a text that the server may have put the key into."""
        return text if self._key is None else without_key(text, self._key)

    @asynccontextmanager
    async def _answer(
        self, method: str, path: str, body: Mapping[str, Any] | None, stall: float | None = None
    ) -> AsyncIterator[tuple[httpx.Response, AnswerClock]]:
        url = f"{self.root}{path}" if path.startswith("/") else f"{self.url}/{path}"
        content = None if body is None else json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
        try:
            timeout = self._timeout(stall or self.stall)
            clock = AnswerClock(stall or self.stall)
            async with AsyncExitStack() as opened:
                asking = self._open().stream(method, url, content=content, timeout=timeout)
                response = await clock.within(opened.enter_async_context(asking), more=_CONNECT + _WRITE)
                clock.restart()
                if response.status_code != 200:
                    raise await self._failure(response, clock)
                yield response, clock
        except _Late:
            raise Unreachable(f"{self.url} stopped responding", stalled=True) from None
        except (httpx.TransportError, httpx.DecodingError) as error:
            raise self._unreachable(error) from error
        except (httpx.InvalidURL, UnicodeError) as error:
            raise Refused(f"{self.url} is not the URL of a server: {error}", 0) from error

    def _timeout(self, stall: float) -> httpx.Timeout:
        return httpx.Timeout(stall, connect=_CONNECT, write=_WRITE, pool=None)

    def _open(self) -> httpx.AsyncClient:
        if self._client is None:
            headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
            if self._key is not None:
                headers["authorization"] = f"Bearer {self._key}"
            self._client = httpx.AsyncClient(
                headers=headers,
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=256, keepalive_expiry=_IDLE),
                transport=self._transport,
                # A proxy of the environment is not the way to this machine.
                mounts={"all://127.0.0.1": None, "all://localhost": None, "all://[::1]": None},
                follow_redirects=False,
            )
        return self._client

    async def _pieces(self, response: httpx.Response, clock: AnswerClock) -> AsyncIterator[bytes]:
        size = 0
        async for piece in clock.each(response.aiter_bytes()):
            size += len(piece)
            if size > _LONGEST:
                raise Refused(f"{self.url} sent an answer of more than {_LONGEST >> 20} MiB", response.status_code)
            yield piece

    async def _json(self, response: httpx.Response, clock: AnswerClock) -> Any:
        content = b"".join([piece async for piece in self._pieces(response, clock)])
        kind = response.headers.get("content-type", "")
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            if kind and "json" not in kind:
                what = f"answered with `{kind.partition(';')[0]}` instead of JSON: it is not a model server"
                raise Refused(f"{self.url} {what}", response.status_code) from None
            raise Unreachable(f"{self.url} sent a truncated answer") from None

    def _event(self, data: str) -> Any:
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            raise Unreachable(f"{self.url} sent a truncated answer") from None

    async def _failure(self, response: httpx.Response, clock: AnswerClock) -> ServerError:
        status = response.status_code
        if 300 <= status < 400:
            return Refused(self._redirected(response.headers.get("location", "")), status)
        words, code, param = self._words(await self._beginning(response, clock))
        if status in (401, 403):
            why = "requires a key" if self._key is None else "rejected the key"
            return Refused(f"{self.url} {why}: set {variable_of(self.url)} in the environment{words}", status)
        if code != _SPENT and (status in PASSING or (status >= 500 and status not in _FOREVER)):
            after = _retry_after(response.headers)
            return Unreachable(f"{self.url} answered {status}{words}", retry_after=after, status=status)
        return Refused(f"{self.url} answered {status}{words}", status, param)

    async def _beginning(self, response: httpx.Response, clock: AnswerClock) -> bytes:
        """What an error says, as far as it can be read."""
        content = b""
        with suppress(_Late):
            async for piece in clock.each(response.aiter_bytes()):
                content += piece
                if len(content) > 1 << 16:
                    break
        return content

    def _words(self, content: bytes) -> tuple[str, str, str | None]:
        """What the server says, to be put behind a sentence, its code of the error, and the field that it blames."""
        text = content.decode("utf-8", "replace")
        try:
            said = json.loads(text)
        except (ValueError, RecursionError):
            said = None if text.lstrip().startswith("<") else text
        text, code = error_in(said) or (said if isinstance(said, str) else "", "")
        error = said.get("error", said) if isinstance(said, dict) else None
        param = error.get("param") if isinstance(error, dict) else None
        return self._shown(text), code, param if isinstance(param, str) else None

    def _shown(self, text: str) -> str:
        text = " ".join(self.without_key(text).split())
        return f": {text if len(text) <= MAX_WORDS else text[:MAX_WORDS] + '…'}" if text else ""

    def _redirected(self, place: str) -> str:
        target = httpx.URL(self.url).join(place)
        return f"{self.url} redirects, which is not followed: the model may be at {target.scheme}://{target.netloc.decode()}"

    def _unreachable(self, error: httpx.TransportError | httpx.DecodingError) -> ServerError:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, ssl.SSLCertVerificationError):
                return Refused(f"{self.url} has an invalid certificate: {cause.verify_message}", 0)
            cause = cause.__cause__ or cause.__context__
        if isinstance(error, httpx.ConnectTimeout):
            return Unreachable(f"{self.url} could not be reached in {_CONNECT:g} s", absent=True)
        if isinstance(error, httpx.ReadTimeout):
            return Unreachable(f"{self.url} stopped responding", stalled=True)
        if isinstance(error, httpx.ConnectError):
            words = _nobody(self.url) if _is_refused(error) else str(error) or "no connection"
            return Unreachable(f"{self.url} cannot be reached: {words}", absent=True)
        if isinstance(error, httpx.UnsupportedProtocol):
            return Refused(f"{self.url} is not the URL of a server", 0)
        return Unreachable(f"{self.url} dropped the connection: {str(error) or type(error).__name__}")


def error_in(said: Any) -> tuple[str, str] | None:
    """The message and the code of an error in the JSON that a server sent; None where it tells of none."""
    if not isinstance(said, dict):
        return None
    error = said.get("error", said if "message" in said and said.get("object") == "error" else said.get("detail"))
    if isinstance(error, dict):
        return str(error.get("message", error)), str(error.get("code") or error.get("type") or "")
    if error:
        return error if isinstance(error, str) else json.dumps(error), ""
    return None


def _retry_after(headers: httpx.Headers) -> float | None:
    """Seconds after which the server wants to be asked again (RFC 9110, section 10.2.3)."""
    try:
        if (milliseconds := headers.get("retry-after-ms")) is not None:
            return max(0.0, float(milliseconds) / 1000)
        given = headers.get("retry-after")
        if given is None:
            return None
        try:
            return max(0.0, float(given))
        except ValueError:
            moment = parsedate_to_datetime(given)
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=UTC)
            return max(0.0, (moment - datetime.now(UTC)).total_seconds())
    except (ValueError, OverflowError):
        return None


_OPENAI = "https://api.openai.com"
_KEYS = {
    _OPENAI: "OPENAI_API_KEY",
    "https://api.anthropic.com": "ANTHROPIC_API_KEY",
    "https://openrouter.ai": "OPENROUTER_API_KEY",
}
_PORTS = {"http": 80, "https": 443}
# What starts the servers that have one place on this machine.
_STARTED_BY = {"http://127.0.0.1:11434": "ollama serve", "http://127.0.0.1:1234": "lms server start"}


def _nobody(url: str) -> str:
    command = _STARTED_BY.get(origin_of(url).replace("localhost", "127.0.0.1"))
    return f"no server listens there{'' if command is None else f'; `{command}` starts it'}"


def _is_refused(error: BaseException | None) -> bool:
    """Whether a connection failed since nothing listens at its port, be it at each of several addresses."""
    if isinstance(error, BaseExceptionGroup):
        return any(map(_is_refused, error.exceptions))
    return isinstance(error, ConnectionRefusedError) or (
        error is not None and _is_refused(error.__cause__ or error.__context__)
    )


def origin_of(url: str) -> str:
    """Scheme, host and port of a URL, written in one way. Raises ValueError for what is not the URL of a server."""
    parts = urlsplit(url)
    port = parts.port or _PORTS.get(parts.scheme)
    if port is None or not parts.hostname:
        raise ValueError(f"`{url}` is not the URL of a server")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{port}"


def key_of(url: str, environment: Mapping[str, str] | None = None) -> str | None:
    """The key for the server of a URL, None without one.

    Raises ModelError where the environment's variables cannot be read, or lack the key of a server that answers
    nobody without one.
    """
    environment = os.environ if environment is None else environment
    origin = origin_of(url)
    for entry in environment.get("QPDSL_API_KEYS", "").split():
        place, sign, key = entry.partition("=")
        try:
            given = origin_of(place)
        except ValueError:
            given = ""
        # What stands there may be a key, so it is not shown.
        if not sign or not key or not given:
            raise ModelError(url, "QPDSL_API_KEYS has an invalid entry; one is `https://host:8000=KEY`")
        if given == origin:
            return _checked(url, key)
    key = environment.get(_variables(environment).get(origin, ""), "").strip()
    if not key and origin in map(origin_of, _KEYS):
        raise ModelError(url, f"it needs a key: set `{variable_of(url, environment)}` in the environment")
    return _checked(url, key) if key else None


def variable_of(url: str, environment: Mapping[str, str] | None = None) -> str:
    """What to set in the environment for a server that wants a key."""
    environment = os.environ if environment is None else environment
    parts = urlsplit(url)
    return _variables(environment).get(origin_of(url), f'QPDSL_API_KEYS="{parts.scheme}://{parts.netloc}=KEY"')


def _variables(environment: Mapping[str, str]) -> Mapping[str, str]:
    """The variables that hold the keys of servers, by origin."""
    known = {origin_of(url): name for url, name in _KEYS.items()}
    with suppress(ValueError):
        known[origin_of(environment.get("OPENAI_BASE_URL", "").strip() or _OPENAI)] = "OPENAI_API_KEY"
    return known


def _checked(url: str, key: str) -> str:
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ModelError(url, f"the key in {variable_of(url).partition('=')[0]} has invalid characters")
    return key


class ServerSentEvents:
    """Takes bytes as they come and gives the data of the events that they complete.

    Lines end with CR, LF or both; they are decoded as a whole, so a character may be cut between two pieces. Comments
    and fields other than `data` are skipped.
    """

    def __init__(self) -> None:
        self._line = bytearray()
        self._data: list[str] = []
        self._after_cr = False

    def push(self, piece: bytes) -> list[str]:
        """The data of the events that end in this piece."""
        if self._after_cr and piece.startswith(b"\n"):
            piece = piece[1:]
            self._after_cr = False
        if not piece:
            return []
        self._after_cr = piece.endswith(b"\r")
        if b"\n" not in piece and b"\r" not in piece:
            self._line += piece
            return []
        lines = (bytes(self._line) + piece).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._line = bytearray(lines.pop())
        events = []
        for line in lines:
            if line:
                self._take(line)
            elif self._data:
                events.append("\n".join(self._data))
                self._data = []
        return events

    def _take(self, line: bytes) -> None:
        name, _, value = line.decode("utf-8", "replace").partition(":")
        if name == "data":
            self._data.append(value.removeprefix(" "))
