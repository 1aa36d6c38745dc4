"""A server on 127.0.0.1 that behaves as a kind of real server does, with what went wrong and what it saw.

    with stub("vllm") as server:
        model = f"vllm:{server.url}#{server.model}"
        ...
        assert server.counts.requests == 3

`stub("vllm", names_stop=None)` has one trait another way (see `Traits`); `fail` has the next requests go wrong;
`restart` closes the port and opens it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import math
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from tests.support.remote.answers import Choice, Endpoint, Job, Json, Refused, Writer
from tests.support.remote.faults import Fault, Kind
from tests.support.remote.language import Writes, language
from tests.support.remote.traits import KINDS, Traits

_WORDS = {200: "OK", 307: "Temporary Redirect", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found"}
_PAGE = 16
_ENDPOINTS: dict[str, Endpoint] = {
    "/v1/completions": "completions",
    "/v1/chat/completions": "chat",
    "/completion": "completion",
    "/generate": "generate",
}


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: Json


@dataclass
class Counts:
    """What the server saw. `requests` asked for text; of these `aborted` were closed by the client while it wrote.

    `most` were served side by side at most; `connections` are open; `reused` prompts began with what its cache had.
    """

    requests: int = 0
    aborted: int = 0
    serving: int = 0
    most: int = 0
    connections: int = 0
    opened: int = 0
    reused: int = 0
    drawn: int = 0


@dataclass
class StubServer:
    """See the file. `pace` seconds pass before each token; `key`, where there is one, must be sent."""

    traits: Traits
    model: str = "stub"
    key: str | None = None
    pace: float = 0.0
    writes: Writes | None = None
    counts: Counts = field(default_factory=Counts)
    asked: list[Asked] = field(default_factory=list)
    port: int = 0
    _faults: list[list[Any]] = field(default_factory=list)
    _cache: set[bytes] = field(default_factory=set)
    _number: int = 0

    def __post_init__(self) -> None:
        self._writer = Writer(self.traits, language(), self.model)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.start()

    # For tests

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """What stands in the address of a model."""
        return f"{self.origin}/v1"

    @property
    def bodies(self) -> list[Json]:
        """The requests for text, as they came."""
        return [asked.body for asked in self.asked if asked.path in _ENDPOINTS]

    def fail(self, kind: Kind, times: int | None = 1, path: str = "", **how: Any) -> None:
        """Has the next `times` requests to paths that end with `path` go wrong; None for all of them."""
        fault = Fault(kind, times, path or "completions", **how)
        self._faults.append([fault, times])

    def becomes(self, **traits: Any) -> None:
        """Changes some of its traits from now on, as another version of the server would."""
        self.traits = replace(self.traits, **traits)
        self._writer = Writer(self.traits, language(), self.model)

    def mend(self) -> None:
        """Takes back all faults."""
        self._faults.clear()

    def start(self) -> None:
        """Listens, on the same port as before."""
        self._run(self._start())

    def stop(self) -> None:
        """Closes the port and all connections at once, as `kill -9` does."""
        self._run(self._stop())

    def restart(self, after: float = 0.0) -> None:
        self.stop()
        time.sleep(after)
        self.start()

    def close(self) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=10)

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, limit=1 << 24)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._open):
            writer.transport.abort()
        mine = asyncio.current_task()
        others = [task for task in asyncio.all_tasks() if task is not mine]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        self.counts.connections = self.counts.serving = 0
        self._cache.clear()

    # HTTP

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        self.counts.connections += 1
        self.counts.opened += 1
        try:
            while (asked := await _read(reader)) is not None:
                self.asked.append(asked)
                if not await self._answer(asked, reader, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._open.discard(writer)
            self.counts.connections = len(self._open)
            writer.close()

    async def _answer(self, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection stays open."""
        fault = self._fault(asked.path)
        if fault is not None and not await self._goes_on(fault, reader, writer):
            return fault.kind in ("too_many", "overloaded", "error", "gateway", "html", "empty", "huge", "redirect")
        try:
            if self.key is not None and asked.headers.get("authorization") != f"Bearer {self.key}":
                raise Refused(401, "Incorrect API key provided")
            endpoint = _ENDPOINTS.get(asked.path)
            if endpoint is None or not self._has(asked.path):
                await _send(writer, 200, self._other(asked))
                return True
            job = self._writer.job(endpoint, asked.body)
        except Refused as refused:
            await _send(writer, refused.status, self._writer.error(refused.status, refused.message))
            return True
        return await self._generate(job, fault, reader, writer)

    def _has(self, path: str) -> bool:
        return {"/completion": "llama-server", "/generate": "sglang"}.get(path, self.traits.name) == self.traits.name

    # Faults

    def _fault(self, path: str) -> Fault | None:
        for entry in self._faults:
            fault, left = entry
            if path.endswith(fault.path) and left != 0:
                entry[1] = None if left is None else left - 1
                return fault  # type: ignore[no-any-return]
        return None

    async def _goes_on(self, fault: Fault, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Has a fault happen; whether an answer is made all the same."""
        error = self._writer.error
        if fault.kind == "slow":
            await asyncio.sleep(fault.seconds or 0.0)
            return True
        if fault.kind in ("stall_stream", "half_json", "half_stream", "other_model", "wrong_text"):
            return True
        if fault.kind == "drop":
            writer.transport.abort()
        elif fault.kind == "stall":
            while not reader.at_eof():
                await asyncio.sleep(0.01)
        elif fault.kind in ("comments", "no_tokens"):
            empty = b'data: {"id": "1", "object": "text_completion", "choices": []}\n\n'
            writer.write(_head(200, {"Content-Type": "text/event-stream"}))
            while not reader.at_eof():
                writer.write(b": still here\n\n" if fault.kind == "comments" else empty)
                await asyncio.sleep(0.02)
        elif fault.kind == "too_many":
            extra = {} if fault.seconds is None else {"Retry-After": f"{fault.seconds:g}"}
            await _send(writer, 429, error(429, "Rate limit reached"), extra)
        elif fault.kind == "redirect":
            await _send(writer, 307, {}, {"Location": fault.location})
        elif fault.kind in ("html", "gateway"):
            page = b"<html><body>Bad Gateway</body></html>"
            await _send(writer, 200 if fault.kind == "html" else 502, page, form="text/html")
        elif fault.kind == "huge":
            text = "a" * fault.size
            await _send(writer, 200, {"choices": [{"index": 0, "text": text, "message": {"content": text}}]})
        elif fault.kind == "empty":
            await _send(writer, 200, {"id": "1", "object": "text_completion", "model": self.model, "choices": []})
        else:
            status = {"overloaded": 503, "error": 500, "unauthorized": 401, "bad_request": 400}[fault.kind]
            await _send(writer, status, error(status, fault.message, fault.param))
        return False

    # Text

    async def _generate(
        self, job: Job, fault: Fault | None, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        counts, kind = self.counts, None if fault is None else fault.kind
        counts.requests += 1
        counts.serving += 1
        counts.most = max(counts.most, counts.serving)
        self._number += 1
        number, cached = self._number, self._cached(job.prompt)
        told = self._writer if kind != "other_model" else replace(self._writer, served="another")
        try:
            if job.stream:
                sent = _Chunks(writer)
                async for event in self._events(told, job, fault, cached, number, reader):
                    await sent.send(event)
                    if kind == "stall_stream" and sent.count == 2:
                        while not reader.at_eof():
                            await asyncio.sleep(0.01)
                    if kind == "half_stream" and sent.count == 2:
                        await sent.half()
                        return False
                await sent.end()
                return True
            choices = []
            for place in range(len(job.drawings)):
                drawn = [choice async for choice, _, _ in self._draw(job, place, fault, reader)]
                choices.append(drawn[-1])
            answer = told.whole(job, choices, cached, number)
            if kind == "half_json":
                await _send_half(writer, answer)
                return False
            await _send(writer, 200, answer)
            return True
        except _Gone:
            counts.aborted += 1
            return False
        finally:
            counts.serving -= 1

    async def _events(
        self, told: Writer, job: Job, fault: Fault | None, cached: int, number: int, reader: asyncio.StreamReader
    ) -> AsyncIterator[Json | str]:
        choices: list[Choice] = []
        for place in range(len(job.drawings)):
            choice = Choice(place)
            async for choice, new, tokens in self._draw(job, place, fault, reader):
                yield told.event(job, choice, new, tokens, cached, number)
            choices.append(choice)
        if job.endpoint in ("chat", "completions") and job.tells_usage:
            yield told.last_event(job, choices, cached, number)
        if self.traits.done and job.endpoint != "completion":
            yield "[DONE]"

    async def _draw(
        self, job: Job, place: int, fault: Fault | None, reader: asyncio.StreamReader
    ) -> AsyncIterator[tuple[Choice, str, list[Any]]]:
        async def beat() -> None:
            await asyncio.sleep(self.pace)
            if reader.at_eof() and (self.traits.cancels or job.stream):
                raise _Gone

        writes = self.writes
        if fault is not None and fault.kind == "wrong_text":
            writes = lambda prompt, seed: fault.message  # noqa: E731
        async for choice, new, tokens in self._writer.write(job, place, writes, beat):
            if len(choice.tokens) == 1:
                self._cache.update(_pages(job.prompt))
            self.counts.drawn += len(tokens)
            yield choice, new, tokens

    def _cached(self, prompt: tuple[int, ...]) -> int:
        """How many tokens at the beginning of a prompt it has computed before, in pages; never all of them."""
        pages = 0
        for page in _pages(prompt[:-1]):
            if page not in self._cache:
                break
            pages += 1
        self.counts.reused += pages > 0
        return pages * _PAGE

    # What is not text

    def _other(self, asked: Asked) -> Any:
        """Raises Refused."""
        answer = self._about(asked) if asked.method == "GET" else self._tokens(asked)
        if answer is None:
            raise Refused(404, "Not Found")
        return answer

    def _about(self, asked: Asked) -> Any:
        traits, path = self.traits, asked.path
        if path == "/v1/models":
            if traits.name == "transformers serve":
                # It lists what is in the cache of the hub.
                raise Refused(500, "Internal Server Error")
            return self._models()
        if path == "/health":
            return {"status": "ok"} if traits.name != "openai" else None
        if traits.name == "transformers serve" and path == "/openapi.json":
            return {"info": {"title": "FastAPI", "version": "0.1.0"}, "paths": {"/load_model": {}, "/v1/models": {}}}
        if traits.name == "llama_cpp.server" and path == "/openapi.json":
            return {"info": {"title": "llama.cpp Python API", "version": traits.version}}
        if traits.name == "vllm":
            gauge = 'vllm:num_requests_running{engine="0",model_name="%s"} %d.0\n'
            running = (gauge % (self.model, self.counts.serving)).encode()
            return {"/version": {"version": traits.version}, "/metrics": running}.get(path)
        if traits.name == "sglang":
            server = {"version": traits.version, "context_length": traits.context, "max_total_num_tokens": 65536}
            about = {"model_path": f"/models/{self.model}", "is_generation": not traits.reward}
            return {"/get_server_info": server, "/server_info": server, "/get_model_info": about}.get(path)
        if traits.name == "llama-server":
            settings = {"n_ctx": traits.context}
            props = {"default_generation_settings": settings, "total_slots": 4, "build_info": traits.version}
            slots = [{"id": place, "is_processing": place < self.counts.serving} for place in range(4)]
            return {"/props": props, "/slots": slots}.get(path)
        return None

    def _models(self) -> Json:
        traits = self.traits
        model: Json = {"id": self.model, "object": "model", "created": 1_790_000_000, "owned_by": traits.owned_by}
        if traits.name in ("vllm", "sglang"):
            model |= {"root": self.model, "max_model_len": traits.context}
        if traits.name == "llama-server":
            model["meta"] = {"n_vocab": language().size, "n_ctx_train": traits.context}
        return {"object": "list", "data": [model]}

    def _tokens(self, asked: Asked) -> Any:
        traits, body, speech = self.traits, asked.body, language()
        paths = ("/classify",) if traits.name == "sglang" else ("/pooling", "/classify")
        if traits.name in ("vllm", "sglang") and traits.reward and asked.path in paths:
            return self._rewards(asked.path, body)
        if traits.name in ("vllm", "sglang") and asked.path == "/tokenize":
            ids = speech.chat(body["messages"]) if "messages" in body else speech.encode(body["prompt"])
            return {"tokens": ids, "count": len(ids), "max_model_len": traits.context}
        if traits.name in ("vllm", "sglang") and asked.path == "/detokenize":
            return {"prompt": speech.decode(body["tokens"]), "text": speech.decode(body["tokens"])}
        if traits.name == "llama-server" and asked.path == "/tokenize":
            return {"tokens": speech.encode(body["content"])}
        if traits.name == "llama-server" and asked.path == "/detokenize":
            return {"content": speech.decode(body["tokens"])}
        if traits.name == "llama-server" and asked.path == "/apply-template":
            return {"prompt": speech.tokenizer.decode(speech.chat(body["messages"]))}
        if traits.name == "llama_cpp.server" and asked.path == "/extras/tokenize":
            return {"tokens": speech.encode(body["input"])}
        return None

    def _rewards(self, path: str, body: Json) -> Any:
        """A reward model of two classes: the second one's probability is a hash of the tokens up to the place."""
        given = body.get("input") or body.get("input_ids") or body["text"]
        many = given if isinstance(given, list) and given and isinstance(given[0], (list, str)) else [given]
        shares = self.traits.reward_shares or body.get("use_activation", True) is not False
        data: list[Json] = []
        for place, one in enumerate(many):
            ids = language().encode(one) if isinstance(one, str) else list(one)
            rows = [_classes(reward_of(ids[: end + 1]), shares=shares) for end in range(len(ids))]
            if self.traits.name == "sglang":
                row = _classes(reward_of(ids), shares=False)
                return {"embedding": row, "meta_info": {"id": "1", "prompt_tokens": len(ids)}}
            if path == "/pooling":
                steps = self.traits.reward_rows == "steps"
                told = [row for id, row in zip(ids, rows, strict=True) if not steps or id == ids[-1]]
                data.append({"index": place, "object": "pooling", "data": told})
            else:
                data.append({"index": place, "label": "LABEL_1", "probs": rows[-1], "num_classes": 2})
        usage = {"prompt_tokens": sum(map(len, many)), "total_tokens": sum(map(len, many))}
        return {"id": "pool-1", "object": "list", "model": self.model, "data": data, "usage": usage}


def _classes(score: float, *, shares: bool) -> list[float]:
    """The numbers of the two classes: probabilities, or logits of which the first is not 0."""
    return [1 - score, score] if shares else [0.25, 0.25 + math.log(score / (1 - score))]


def reward_of(ids: list[int]) -> float:
    """The score that a stub with `reward` gives after these tokens, in (0, 1)."""
    digest = hashlib.blake2b(np.asarray(ids, dtype="<i4").tobytes(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") + 1) / (2**64 + 2)


@contextlib.contextmanager
def stub(
    kind: str = "vllm",
    *,
    model: str = "stub",
    key: str | None = None,
    pace: float = 0.0,
    writes: Writes | None = None,
    **lies: Any,
) -> Iterator[StubServer]:
    """A server of this kind (see `KINDS`), with some of its traits another way."""
    server = StubServer(replace(KINDS[kind], **lies), model, key, pace, writes)
    try:
        yield server
    finally:
        server.close()


class _Gone(Exception):
    """The client closed the connection."""


class _Chunks:
    """A stream of events, in HTTP chunks."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self.count = 0

    async def send(self, event: Json | str) -> None:
        if self.count == 0:
            self._writer.write(_head(200, {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"}))
        self.count += 1
        self._chunk(f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode())
        await self._writer.drain()

    async def end(self) -> None:
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    async def half(self) -> None:
        self._chunk(b'data: {"choices": [{"ind')
        await self._writer.drain()
        self._writer.close()

    def _chunk(self, data: bytes) -> None:
        self._writer.write(b"%x\r\n%s\r\n" % (len(data), data))


async def _read(reader: asyncio.StreamReader) -> Asked | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.strip().split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    data = await reader.readexactly(int(headers.get("content-length", "0")))
    try:
        body = json.loads(data) if data else {}
    except ValueError:
        body = {}
    return Asked(method, urlsplit(target).path, headers, body if isinstance(body, dict) else {})


def _head(status: int, headers: dict[str, str]) -> bytes:
    lines = [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([f"HTTP/1.1 {status} {_WORDS.get(status, 'Status')}", *lines, "", ""]).encode("latin-1")


async def _send(
    writer: asyncio.StreamWriter,
    status: int,
    body: Any,
    extra: dict[str, str] | None = None,
    form: str = "application/json",
) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    writer.write(_head(status, {"Content-Type": form, "Content-Length": str(len(data)), **(extra or {})}) + data)
    await writer.drain()


async def _send_half(writer: asyncio.StreamWriter, body: Json) -> None:
    data = json.dumps(body).encode()
    writer.write(_head(200, {"Content-Type": "application/json", "Content-Length": str(len(data))}))
    writer.write(data[: len(data) // 2])
    await writer.drain()


def _pages(prompt: tuple[int, ...]) -> Iterator[bytes]:
    """A digest for each whole page at the beginning of a prompt, of all up to its end."""
    for end in range(_PAGE, len(prompt) + 1, _PAGE):
        yield hashlib.blake2b(np.asarray(prompt[:end], dtype="<i4").tobytes(), digest_size=16).digest()
