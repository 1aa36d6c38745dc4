"""The application: its endpoints, and how a request is read for them."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from qpdsl import __version__
from qpdsl.errors import shorten, unknown
from qpdsl.executor.events.events import RequestReached
from qpdsl.serve.completion_request import CompletionRequest, Endpoint, Refusal
from qpdsl.serve.http.access_log import RequestRecord
from qpdsl.serve.http.admission_control import AdmissionControl
from qpdsl.serve.http.chat_page import chat_page
from qpdsl.serve.http.client_keys import ClientKeys
from qpdsl.serve.http.event_stream import EventStreamResponse, Receive, Send, or_disconnect
from qpdsl.serve.http.exchange import FAULT, Exchange
from qpdsl.serve.http.host_check import HostCheck
from qpdsl.serve.http.request_reader import RequestReader
from qpdsl.serve.http.server_figures import CONTENT_TYPE, Outcome, Replicas, ServerFigures
from qpdsl.serve.lenience import HEADER, Lenience
from qpdsl.serve.served_model import PreparedRequest, ServedModel

_STRICT = Lenience()
# A client that has gone away is told nothing more; nginx has this number for that.
_GONE = 499
Handler = Callable[[Request], Awaitable[Any]]
Scope = MutableMapping[str, Any]
T = TypeVar("T")
# Where the scope of a request has its record.
_RECORD = "qpdsl.record"
_WATCHED = ("/healthz", "/health", "/readyz")
# What of a connection is still to come after these means nothing.
_UNREAD = ("ambiguous_body", "body_too_slow")
# A body of so few bytes is read in less time than it takes to hand it to a thread, unless something in it is compiled.
_QUICK = 2 << 10
_COMPILED = (b"\\u", b"tools", b"functions", b"response_format", b"structured_outputs", b"guided_", b"parameters")
# Lists, objects and fields in a body.
_MAX_PARTS = 100_000
_MAX_DIGITS = 1_000
_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"', re.DOTALL)
# Of so many bodies of the largest size is memory taken while they wait to be read.
_MAX_BODIES = 64


@dataclass(frozen=True, slots=True)
class Limits:
    """Bodies of up to `body` bytes, sent within `receive` seconds; `running` requests at once and `waiting` more.

    Of one key at most `per_key` run, None for any number. Each may take `seconds`, None for any. A stream in which
    nothing happens for `quiet` seconds gets a comment. With `orders` clients may say which request goes first. A client
    that takes nothing of an answer for `unread` seconds is cut off.
    """

    body: int = 4 << 20
    running: int = 64
    waiting: int = 256
    seconds: float | None = None
    quiet: float = 15.0
    receive: float = 30.0
    per_key: int | None = None
    orders: bool = False
    unread: float = 60.0


class ServerApp:
    """Models behind OpenAI's API, as an ASGI application. `report` is told of faults in the server itself.

    `lenience`: what it may leave out of requests. `hosts`: which names the server may be asked by. With `shared_cache`
    keys find each other's prompts in the prefix cache. Each request that is over goes to `log`, and `reached` is told
    how far those are that models answer. `replicas` answer, where there are several.
    """

    def __init__(
        self,
        models: Sequence[ServedModel],
        limits: Limits,
        keys: ClientKeys | None = None,
        report: Callable[[Exception], None] = lambda error: None,
        *,
        lenience: Lenience = _STRICT,
        hosts: HostCheck | None = None,
        shared_cache: bool = False,
        log: Callable[[RequestRecord], None] = lambda record: None,
        reached: Callable[[RequestReached], None] = lambda event: None,
        replicas: Replicas | None = None,
    ) -> None:
        self.models = {model.name: model for model in models}
        self.limits = limits
        self.admission = AdmissionControl(limits.running, limits.waiting, limits.seconds, limits.per_key)
        self.figures = ServerFigures(lambda: self.admission.running, lambda: self.admission.waiting, replicas)
        self._replicas = replicas
        self.report = report
        self._keys = keys
        self._lenience = lenience
        self._hosts = hosts or HostCheck.any()
        self._shared_cache = shared_cache
        self._log = log
        self._reached = reached
        self._reader = RequestReader(limits.waiting)
        self._bodies = 0
        self._created = int(time.time())
        self._app = Starlette()
        # Where a redirect leads `Host` says, and a client would follow it with its key.
        self._app.router.redirect_slashes = False
        self._route("/", self._page, ["GET"], guarded=False)
        self._route("/v1/models", self._list, ["GET"])
        self._route("/v1/models/{name:path}", self._show, ["GET"])
        self._route("/v1/chat/completions", self._chat, ["POST"])
        self._route("/v1/completions", self._complete, ["POST"])
        self._route("/tokenize", self._tokens("tokenize"), ["POST"])
        self._route("/detokenize", self._tokens("detokenize"), ["POST"])
        self._route("/metrics", self._metrics, ["GET"])
        self._route("/version", self._version, ["GET"], guarded=False)
        for path in ("/healthz", "/health"):
            self._route(path, self._alive, ["GET"], guarded=False)
        self._route("/readyz", self._ready, ["GET"], guarded=False)
        self._app.add_exception_handler(HTTPException, _no_route)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = RequestRecord(scope["method"], scope["raw_path"].decode("ascii", "replace"))
        scope[_RECORD] = record

        async def sent(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start" and message["status"] != _GONE:
                record.status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, sent)
        finally:
            # Whoever watches the server asks these all the time.
            if not (record.status == 200 and record.path in _WATCHED):
                self._log(record)

    def _route(self, path: str, handler: Handler, methods: list[str], *, guarded: bool = True) -> None:
        async def guard(request: Request) -> Any:
            try:
                self._hosts.check(request.headers.get("host", ""))
                if "transfer-encoding" in request.headers and "content-length" in request.headers:
                    # Another server before this one may go by the other of the two (RFC 9112, section 6.3).
                    raise Refusal("a body has a length or is chunked, not both", code="ambiguous_body")
                if guarded:
                    self._check_key(request)
                return await handler(request)
            except Refusal as refusal:
                return refused(refusal)
            except ClientDisconnect:
                return Response(status_code=_GONE)
            except Exception as error:
                self.report(error)
                return refused(Refusal(FAULT, status=500, code="internal"))

        self._app.add_route(path, guard, methods=methods)

    def _check_key(self, request: Request) -> None:
        if self._keys is None:
            return
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise Refusal("missing API key: send `Authorization: Bearer KEY`", status=401, code="missing_api_key")
        if (name := self._keys.client(key.strip())) is None:
            raise Refusal("invalid API key", status=401, code="invalid_api_key")
        _record(request).key = name

    async def _page(self, request: Request) -> Response:
        return chat_page()

    async def _list(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._card(model) for model in self.models.values()]})

    async def _show(self, request: Request) -> Response:
        return JSONResponse(self._card(self._model(request.path_params["name"])))

    def _card(self, model: ServedModel) -> dict[str, Any]:
        head = {"id": model.name, "object": "model", "created": self._created, "owned_by": "qpdsl"}
        return {**head, **model.card}

    async def _alive(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", **self._replica_counts()})

    async def _version(self, request: Request) -> Response:
        return JSONResponse({"version": __version__})

    async def _ready(self, request: Request) -> Response:
        replicas = self._replica_counts()
        if self.admission.draining:
            return JSONResponse({"status": "draining", "running": self.admission.running, **replicas}, status_code=503)
        if self._replicas is not None and not self._replicas.counts[0]:
            return JSONResponse({"status": "loading", **replicas}, status_code=503)
        return JSONResponse({"status": "ready", **replicas})

    def _replica_counts(self) -> dict[str, Any]:
        if self._replicas is None:
            return {}
        ready, loading = self._replicas.counts
        return {"replicas": {"ready": ready, "loading": loading, "lost": self._replicas.lost}}

    async def _metrics(self, request: Request) -> Response:
        return Response(self.figures.text(), media_type=CONTENT_TYPE)

    def _tokens(self, what: str) -> Handler:
        async def handler(request: Request) -> Response:
            record = _record(request)

            def read(data: bytes) -> bytes:
                body = _object_in(data)
                model = self._asked_model(body)
                record.model = model.name
                if (method := getattr(model, what, None)) is None:
                    raise Refusal(f"`{model.name}` is a program, and has no tokens of its own", "model", status=404)
                return json.dumps(method(body)).encode()

            made = await self._read(request, read)
            return Response(made, media_type="application/json") if made is not None else Response(status_code=_GONE)

        return handler

    async def _chat(self, request: Request) -> Any:
        return await self._answer(request, "chat")

    async def _complete(self, request: Request) -> Any:
        return await self._answer(request, "text")

    async def _answer(self, request: Request, endpoint: Endpoint) -> Any:
        record = _record(request)
        record.model = "unknown"
        owner = "" if self._shared_cache else record.key

        def read(data: bytes) -> tuple[CompletionRequest, PreparedRequest, str]:
            body = _object_in(data)
            model = self._asked_model(body)
            record.model = model.name
            asked = CompletionRequest.of(endpoint, body, record.arrived, owner=owner, orders=self.limits.orders)
            return asked, *self._lenience.read(model, asked)

        outcome: Outcome = "cancelled"
        try:
            known = await self._read(request, read)
            outcome = "answered"
        except Refusal as refusal:
            outcome = "rejected" if refusal.status in (429, 503) else "refused"
            raise
        finally:
            if outcome != "answered":
                self.figures.ended(record.model, outcome, time.monotonic() - record.arrived, record.key)
        if known is None:
            return Response(status_code=_GONE)
        asked, prepared, left_out = known
        exchange = Exchange(self.admission, self.figures, self.report, self._reached, record, asked, prepared)
        headers = {"x-request-id": asked.id} | ({HEADER: left_out} if left_out else {})
        if asked.streams:
            if await or_disconnect(request, exchange.enter()) is None:
                return Response(status_code=_GONE)
            named = [(key.encode(), value.encode()) for key, value in headers.items()]
            return EventStreamResponse(exchange.chunks(), self.limits.quiet, named)
        made = await or_disconnect(request, exchange.whole())
        if made is None:
            return Response(status_code=_GONE)
        return Response(made, media_type="application/json", headers=headers)

    async def _read(self, request: Request, read: Callable[[bytes], T]) -> T | None:
        """What `read` makes of a body; None where the client has gone meanwhile. Raises Refusal."""
        if self.admission.draining:
            raise self.admission.ended()
        body = bytearray()
        try:
            await self._receive(request, body)
            if len(body) <= _QUICK and not any(word in body for word in _COMPILED):
                return read(bytes(body))
            reading = self._reader.read(_record(request).key, len(body), partial(read, bytes(body)))
            found: T | None = await or_disconnect(request, reading)
            return found
        except RecursionError:
            raise Refusal("the body is nested too deeply") from None
        finally:
            self._bodies -= len(body)

    async def _receive(self, request: Request, body: bytearray) -> None:
        """Reads the body of a request; what has arrived counts in `_bodies`. Raises Refusal."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        # A page in a browser can send anything else to this machine without asking first.
        if kind != "application/json":
            message = "the content type must be `application/json`: of curl, `-H 'content-type: application/json'`"
            raise Refusal(message, status=415, code="not_json")
        if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
            raise Refusal("the body must not be compressed", status=415, code="encoded_body")
        most = self.limits.body
        told = request.headers.get("content-length", "")
        size = int(told) if told.isdecimal() else 0
        busy = Refusal("many large requests are being read", status=503, code="busy", retry_after=1)
        if self._bodies + size > _MAX_BODIES * most:
            raise busy
        try:
            async with asyncio.timeout(self.limits.receive):
                if size <= most:
                    size = 0
                    async for part in request.stream():
                        size += len(part)
                        if size > most:
                            break
                        if self._bodies + len(part) > _MAX_BODIES * most:
                            raise busy
                        self._bodies += len(part)
                        body += part
        except TimeoutError:
            message = f"the body took more than {self.limits.receive:g} s to arrive"
            raise Refusal(message, status=408, code="body_too_slow") from None
        if size > most:
            raise Refusal(f"the body has more than {most:,} bytes", status=413, code="body_too_large")

    def _asked_model(self, body: Mapping[str, Any]) -> ServedModel:
        name = body.get("model")
        if name is None and len(self.models) == 1:
            return next(iter(self.models.values()))
        if not isinstance(name, str):
            raise Refusal("`model` is missing; `/v1/models` lists the models", "model")
        return self._model(name)

    def _model(self, name: str) -> ServedModel:
        if name not in self.models:
            message = unknown(name, self.models, "there is no model")
            raise Refusal(message, "model", status=404, code="model_not_found")
        return self.models[name]


def refused(refusal: Refusal) -> Response:
    """The answer that says why there is none."""
    # OpenAI's client asks again after any 5xx; what was refused for good would be refused again.
    headers = {"x-should-retry": "true" if refusal.retry_after is not None else "false"}
    if refusal.retry_after is not None:
        headers["retry-after"] = str(refusal.retry_after)
    if refusal.status == 401:
        headers["www-authenticate"] = "Bearer"
    if refusal.code in _UNREAD:
        headers["connection"] = "close"
    # In ASCII, as a message may quote what UTF-8 cannot hold.
    body = json.dumps(refusal.body())
    return Response(body, status_code=refusal.status, headers=headers, media_type="application/json")


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        message = f"{request.url.path} does not take {request.method}"
    else:
        message = (
            f"there is nothing at {request.url.path}; models are asked at /v1/chat/completions and /v1/completions"
        )
    return refused(Refusal(message, status=error.status_code, code="not_found"))


def _record(request: Request) -> RequestRecord:
    record: RequestRecord = request.scope[_RECORD]
    return record


def _object_in(data: bytes) -> Mapping[str, Any]:
    """The JSON object in a body. Raises Refusal."""
    try:
        text = data.decode("utf-8-sig")
        if _containers(text) > _MAX_PARTS:
            raise Refusal(f"the body has more than {_MAX_PARTS:,} lists, objects and fields")
        body = json.loads(text, parse_constant=_no_number, parse_int=_whole, object_pairs_hook=_unique)
        if "\\u" in text:
            json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Refusal("a text in the body has an unpaired surrogate") from None
    except ValueError as error:
        raise Refusal(f"the body is not valid JSON: {error}") from error
    if not isinstance(body, dict):
        raise Refusal("the body is not a JSON object")
    return body


def _containers(text: str) -> int:
    """About how many lists, objects and fields JSON text has: what takes long to read, in one call that cannot wait."""
    found = sum(map(text.count, "[{:"))
    strings = (text.count('"') - text.count('\\"')) // 2
    if found <= _MAX_PARTS or strings > 2 * _MAX_PARTS:
        return max(found, strings // 2)
    # Those in strings cost nothing.
    return sum(map(_STRING.sub("", text).count, "[{:"))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, in which no name stands twice: who reads it before may go by the other (RFC 8259)."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = shorten(Counter(name for name, _ in pairs).most_common(1)[0][0])
        raise Refusal(f"an object in the body has the field `{twice}` twice", twice)
    return found


def _whole(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"a number has {len(digits):,} digits, up to {_MAX_DIGITS:,} are taken")
    return int(digits)


def _no_number(word: str) -> None:
    raise ValueError(f"`{word}` is not a JSON number")
