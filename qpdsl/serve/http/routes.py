"""The application: its endpoints, and the way of one request through them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from qpdsl import __version__
from qpdsl.errors import unknown
from qpdsl.executor.requests.errors import BudgetReached, EngineError, ServerGone
from qpdsl.executor.requests.request import Owner
from qpdsl.serve.body_fields import BodyFields
from qpdsl.serve.http.admission_control import AdmissionControl
from qpdsl.serve.http.client_keys import ClientKeys
from qpdsl.serve.http.event_stream import EventStreamResponse, unless_gone
from qpdsl.serve.http.replies import DONE, Replies, comment, event
from qpdsl.serve.http.server_figures import CONTENT_TYPE, Outcome, ServerFigures
from qpdsl.serve.refusal import Refusal
from qpdsl.serve.served_model import CompletionRequest, Endpoint, Piece, Progress, ServedModel, Work

# A client that has gone away is told nothing more; nginx's number for that is what the log says.
_GONE = 499
_FAULT = "a fault in the server; its log says more"
_MOST_PRIORITY = 1 << 31
_MOST_SECONDS = 7 * 86400.0
_STREAM_OPTIONS = ("include_usage", "include_obfuscation", "continuous_usage_stats")
# All streams together are written to so often at most: a thousand times a second, but ten times each.
_SECONDS_A_SEND = 0.001
_LONGEST_PAUSE = 0.1
# When to ask again for a model whose server was given up.
_SECONDS_TO_RETURN = 30
Handler = Callable[[Request], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bodies of up to `body` bytes; `running` requests at once and `waiting` more; `seconds` for each, None for any.

    A stream in which nothing happens for `quiet` seconds gets a comment.
    """

    body: int = 4 << 20
    running: int = 64
    waiting: int = 256
    seconds: float | None = None
    quiet: float = 15.0


class ServerApp:
    """Models behind OpenAI's API, as an ASGI application: `asgi`. `report` is told of faults in the server itself."""

    def __init__(
        self,
        models: Sequence[ServedModel],
        limits: Limits,
        keys: ClientKeys | None = None,
        report: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        self.models = {model.name: model for model in models}
        self.limits = limits
        self.admission = AdmissionControl(limits.running, limits.waiting)
        self.figures = ServerFigures(lambda: self.admission.running, lambda: self.admission.waiting)
        self.report = report
        self._timers: set[asyncio.Timeout] = set()
        self._given_up = False
        self._keys = keys
        self._created = int(time.time())
        self.asgi = FastAPI(title="qpdsl", docs_url=None, redoc_url=None, openapi_url=None)
        self._route("/v1/models", self._list, ["GET"])
        self._route("/v1/models/{name:path}", self._show, ["GET"])
        self._route("/v1/chat/completions", self._chat, ["POST"])
        self._route("/v1/completions", self._complete, ["POST"])
        self._route("/tokenize", self._tokens("tokenize"), ["POST"])
        self._route("/detokenize", self._tokens("detokenize"), ["POST"])
        self._route("/metrics", self._metrics, ["GET"])
        self._route("/version", self._version, ["GET"], guarded=False)
        self._route("/healthz", self._alive, ["GET"], guarded=False)
        self._route("/readyz", self._ready, ["GET"], guarded=False)
        self.asgi.add_exception_handler(HTTPException, _no_route)

    def pause(self) -> float:
        """How long a stream gathers pieces: the more streams there are, the more each of them says at once."""
        return min(self.admission.running * _SECONDS_A_SEND, _LONGEST_PAUSE)

    @contextlib.asynccontextmanager
    async def timed(self) -> AsyncIterator[None]:
        """Ends the block by TimeoutError after the time that a request may take, or where the server gives it up."""
        async with asyncio.timeout(self.limits.seconds) as timer:
            self._timers.add(timer)
            try:
                yield
            finally:
                self._timers.discard(timer)

    def late(self) -> Refusal:
        """Why a request was ended before it had its answer."""
        if self._given_up:
            return Refusal("the server has ended", status=503, code="draining", retry_after=1)
        message = f"it took more than {self.limits.seconds:g} s, the server's bound for a request"
        return Refusal(message, status=504, code="timeout")

    def give_up(self) -> None:
        """Ends all requests that run or wait, each with an answer that says so."""
        self._given_up = True
        self.admission.turn_away()
        now = asyncio.get_running_loop().time()
        for timer in self._timers:
            timer.reschedule(now)

    def _route(self, path: str, handler: Handler, methods: list[str], *, guarded: bool = True) -> None:
        async def guard(request: Request) -> Any:
            try:
                if guarded:
                    self._check_key(request)
                return await handler(request)
            except Refusal as refusal:
                return refused(refusal)
            except ClientDisconnect:
                return Response(status_code=_GONE)
            except Exception as error:
                self.report(error)
                return refused(Refusal(_FAULT, status=500, code="internal"))

        self.asgi.add_route(path, guard, methods=methods)

    def _check_key(self, request: Request) -> None:
        if self._keys is None:
            return
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise Refusal("no key: send `Authorization: Bearer KEY`", status=401, code="missing_api_key")
        if self._keys.owner(key.strip()) is None:
            raise Refusal("the key is none of this server's", status=401, code="invalid_api_key")

    async def _list(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._card(model) for model in self.models.values()]})

    async def _show(self, request: Request) -> Response:
        return JSONResponse(self._card(self._model(request.path_params["name"])))

    def _card(self, model: ServedModel) -> dict[str, Any]:
        head = {"id": model.name, "object": "model", "created": self._created, "owned_by": "qpdsl"}
        return {**head, **model.card}

    async def _alive(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _version(self, request: Request) -> Response:
        return JSONResponse({"version": __version__})

    async def _ready(self, request: Request) -> Response:
        if self.admission.draining:
            return JSONResponse({"status": "draining", "running": self.admission.running}, status_code=503)
        return JSONResponse({"status": "ready"})

    async def _metrics(self, request: Request) -> Response:
        return Response(self.figures.text(), media_type=CONTENT_TYPE)

    def _tokens(self, what: str) -> Handler:
        async def handler(request: Request) -> Response:
            body = await self._body(request)
            model = self._asked_model(body)
            if (method := getattr(model, what, None)) is None:
                raise Refusal(f"`{model.name}` is a program, and has no tokens of its own", "model", status=404)
            return JSONResponse(await method(body))

        return handler

    async def _chat(self, request: Request) -> Any:
        return await self._answer(request, "chat")

    async def _complete(self, request: Request) -> Any:
        return await self._answer(request, "text")

    async def _answer(self, request: Request, endpoint: Endpoint) -> Any:
        came = time.monotonic()
        name = "unknown"
        try:
            body = await self._body(request)
            model = self._asked_model(body)
            name = model.name
            fields = BodyFields(body, endpoint)
            streams, (usage, always) = fields.flag("stream"), _wants_usage(fields)
            asked = CompletionRequest(endpoint, body, _new_id(endpoint), _owner(fields, came))
            work = _read(model, asked)
        except Refusal:
            self.figures.ended(name, "refused", time.monotonic() - came)
            raise
        except ClientDisconnect:
            self.figures.ended(name, "cancelled", time.monotonic() - came)
            raise
        one = _OneRequest(self, name, asked, work, Replies(asked, name, usage=usage, always=always), came)
        headers = {"x-request-id": asked.id}
        if streams:
            if await unless_gone(request, one.enter()) is None:
                return Response(status_code=_GONE)
            named = [(key.encode(), value.encode()) for key, value in headers.items()]
            return EventStreamResponse(one.chunks(), self.limits.quiet, named)
        made = await unless_gone(request, one.whole())
        if made is None:
            return Response(status_code=_GONE)
        return Response(made, media_type="application/json", headers=headers)

    async def _body(self, request: Request) -> Mapping[str, Any]:
        """The JSON object in a request. Raises Refusal."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        # A page in a browser can send anything else to this machine without asking first.
        if kind != "application/json":
            raise Refusal("the content type of a request is `application/json`", status=415, code="not_json")
        most = self.limits.body
        told = request.headers.get("content-length", "")
        parts: list[bytes] = []
        size = int(told) if told.isdecimal() else 0
        if size <= most:
            size = 0
            async for part in request.stream():
                size += len(part)
                if size > most:
                    break
                parts.append(part)
        if size > most:
            raise Refusal(f"the body has more than {most:,} bytes", status=413, code="body_too_large")
        try:
            text = b"".join(parts).decode("utf-8-sig")
            body = json.loads(text, parse_constant=_no_number)
            if "\\u" in text:
                json.dumps(body, ensure_ascii=False).encode()
        except RecursionError:
            raise _too_deep() from None
        except UnicodeEncodeError:
            raise Refusal("a text in the body has half of a surrogate pair, which is no character") from None
        except ValueError as error:
            raise Refusal(f"the body is no JSON: {error}") from error
        if not isinstance(body, dict):
            raise Refusal("the body is no JSON object")
        return body

    def _asked_model(self, body: Mapping[str, Any]) -> ServedModel:
        name = body.get("model")
        if name is None and len(self.models) == 1:
            return next(iter(self.models.values()))
        if not isinstance(name, str):
            raise Refusal("`model` is missing; it is the name of a model of `/v1/models`", "model")
        return self._model(name)

    def _model(self, name: str) -> ServedModel:
        if name not in self.models:
            message = unknown(name, self.models, "there is no model")
            raise Refusal(message, "model", status=404, code="model_not_found")
        return self.models[name]


@dataclass
class _OneRequest:
    """One request on its way: let in, timed, answered or not, and counted."""

    app: ServerApp
    name: str
    asked: CompletionRequest
    work: Work
    replies: Replies
    came: float
    entered: float = 0.0

    async def whole(self) -> bytes:
        """The body of the answer. Raises Refusal."""
        await self.enter()
        with self._counted():
            async with self.app.timed():
                answer = await self.work.answer()
            self.app.figures.answered(self.name, len(answer.choices), answer.usage)
            return self.replies.whole(answer)

    async def enter(self) -> bool:
        """Waits until the request may run. Raises Refusal where it may not."""
        try:
            await self.app.admission.enter(self.asked.owner)
        except Refusal:
            self._end("rejected")
            raise
        except asyncio.CancelledError:
            self._end("cancelled")
            raise
        self.entered = time.monotonic()
        return True

    async def chunks(self) -> AsyncIterator[bytes]:
        """The events of the stream of a request that has entered, up to the last one; an error is one of them."""
        try:
            with self._counted():
                async with self.app.timed(), contextlib.aclosing(self._happenings()) as chunks:
                    async for chunk in chunks:
                        yield chunk
        except Refusal as refusal:
            yield event(refusal.body()) + DONE

    async def _happenings(self) -> AsyncGenerator[bytes, None]:
        begun = False
        async with contextlib.aclosing(self.work.stream(self.app.pause)) as happenings:
            async for happening in happenings:
                if isinstance(happening, Progress):
                    yield comment(f"progress {happening.text}")
                    continue
                if not begun:
                    begun = True
                    self.app.figures.first(self.name, time.monotonic() - self.came)
                if isinstance(happening, Piece):
                    yield self.replies.piece(happening)
                else:
                    self.app.figures.answered(self.name, len(happening.choices), happening.usage)
                    yield self.replies.end(happening)

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        """Ends what `enter` began. What goes wrong inside comes out as a Refusal, but that the client has gone."""
        outcome: Outcome = "error"
        try:
            yield
            outcome = "answered"
        except Refusal:
            outcome = "failed"
            raise
        except TimeoutError:
            outcome = "timeout"
            raise self.app.late() from None
        except (asyncio.CancelledError, GeneratorExit):
            outcome = "cancelled"
            raise
        except BudgetReached as error:
            outcome = "failed"
            raise Refusal(str(error), status=429, code="insufficient_quota") from error
        except ServerGone as error:
            outcome = "failed"
            raise Refusal(str(error), status=503, code="server_gone", retry_after=_SECONDS_TO_RETURN) from error
        except EngineError as error:
            outcome = "failed"
            raise Refusal(str(error), status=422, code="model_failed") from error
        except Exception as error:
            self.app.report(error)
            raise Refusal(_FAULT, status=500, code="internal") from error
        finally:
            self.app.admission.leave(time.monotonic() - self.entered)
            self._end(outcome)

    def _end(self, outcome: Outcome) -> None:
        self.app.figures.ended(self.name, outcome, time.monotonic() - self.came)


def refused(refusal: Refusal) -> Response:
    """The answer that says why there is none."""
    # OpenAI's client asks again after any 5xx; what was refused for good would be refused again.
    headers = {"x-should-retry": "true" if refusal.retry_after is not None else "false"}
    if refusal.retry_after is not None:
        headers["retry-after"] = str(refusal.retry_after)
    if refusal.status == 401:
        headers["www-authenticate"] = "Bearer"
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


def _read(model: ServedModel, asked: CompletionRequest) -> Work:
    """See `ServedModel.read`. Raises Refusal also for values that nest too deep to be looked at."""
    try:
        return model.read(asked)
    except RecursionError:
        raise _too_deep() from None


def _too_deep() -> Refusal:
    return Refusal("the body nests too deep")


def _new_id(endpoint: Endpoint) -> str:
    return ("chatcmpl-" if endpoint == "chat" else "cmpl-") + uuid.uuid4().hex


def _owner(fields: BodyFields, came: float) -> Owner:
    """Whose requests those of the engine are. As in vLLM the lower `priority` goes first."""
    priority = fields.whole("priority", -_MOST_PRIORITY, _MOST_PRIORITY) or 0
    deadline = fields.number("deadline", 0.0, _MOST_SECONDS)
    return Owner(uuid.uuid4().hex, -priority, None if deadline is None else came + deadline)


def _wants_usage(fields: BodyFields) -> tuple[bool, bool]:
    """Whether a stream says at its end what the request cost, and whether each chunk does so far."""
    options = fields.mapping("stream_options")
    if options and not fields.flag("stream"):
        raise Refusal("`stream_options` needs `stream`", "stream_options")
    for name, value in options.items():
        if name not in _STREAM_OPTIONS:
            raise Refusal(unknown(name, _STREAM_OPTIONS, "`stream_options` has no field"), "stream_options")
        if not isinstance(value, bool | None):
            raise Refusal(f"`stream_options.{name}` is true or false", "stream_options")
    return bool(options.get("include_usage")), bool(options.get("continuous_usage_stats"))


def _no_number(word: str) -> None:
    raise ValueError(f"`{word}` is no number of JSON")
