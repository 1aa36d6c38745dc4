"""A server without sockets for tests of the remote engine: each answer is scripted, and all that is asked is kept."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx

from qpdsl.executor.models.text_model import TextModel
from qpdsl.executor.remote.completion_store import CompletionStore
from qpdsl.executor.remote.remote_engine import RemoteCounts, RemoteEngine
from qpdsl.executor.remote.remote_model import text_model
from qpdsl.executor.remote.server.address import Address
from qpdsl.executor.remote.server.failures import PATIENCE
from qpdsl.executor.remote.server.server_capabilities import ServerCapabilities
from qpdsl.executor.remote.spending import Meter
from qpdsl.executor.requests.request import GenerateRequest, SamplingParams

# A model whose server tells text alone: its tokens are bytes.
ADDRESS = Address("vllm", "http://127.0.0.1:8000/v1", "name")
CAPABILITIES = ServerCapabilities(
    endpoint="text",
    chat=True,
    prefill=True,
    seeds=True,
    greedy=True,
    temperature=True,
    top_p=True,
    constraints=frozenset({"json_schema", "regex", "choice"}),
    stops=True,
    streams=True,
)
Body = dict[str, Any]
Reply = httpx.Response | Exception


def answer(text: str, finish: str | None = "stop", *, prompt: int = 7, sampled: int | None = None, **more: Any) -> Body:
    """A completion of vLLM's."""
    usage = {"prompt_tokens": prompt, "completion_tokens": len(text.split()) if sampled is None else sampled}
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish, **more}], "usage": usage}


class Pieces(httpx.AsyncByteStream):
    """Events of a stream. With `gate`, those after the first wait for it. It says whether it was closed early."""

    def __init__(self, *events: Body, gate: asyncio.Event | None = None, done: bool = True, pace: float = 0.0) -> None:
        self._events, self._gate, self._done, self._pace = events, gate, done, pace
        self.sent = 0
        self.closed_early = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for number, event in enumerate(self._events):
            if number == 1 and self._gate is not None:
                await self._gate.wait()
            await asyncio.sleep(self._pace)
            self.sent += 1
            yield f"data: {json.dumps(event)}\n\n".encode()
        if self._done:
            self.sent += 1
            yield b"data: [DONE]\n\n"

    async def aclose(self) -> None:
        self.closed_early = self.sent <= len(self._events)

    @property
    def response(self) -> httpx.Response:
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=self)


class ScriptedServer:
    """Answers by `script`, from the body and the number of the request."""

    def __init__(self, script: Callable[[Body, int], Reply | Body | Awaitable[Reply | Body]]) -> None:
        self._script = script
        self.bodies: list[Body] = []
        self.in_flight = self.most = 0
        self.given_up = 0
        self.transport = httpx.MockTransport(self._handle)

    async def _handle(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        self.bodies.append(body)
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            reply = self._script(body, len(self.bodies) - 1)
            if not isinstance(reply, dict | httpx.Response | Exception):
                reply = await reply
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        finally:
            self.in_flight -= 1
        if isinstance(reply, Exception):
            raise reply
        return reply if isinstance(reply, httpx.Response) else httpx.Response(200, json=reply)


async def until(holds: Callable[[], bool]) -> None:
    """Waits for something to hold, for at most ten seconds."""
    end = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < end
        await asyncio.sleep(0.002)


def model_of(
    capabilities: ServerCapabilities = CAPABILITIES, address: Address = ADDRESS, place: Path | None = None
) -> TextModel:
    """The text model of an address; `place` has its tokenizer."""
    return text_model(str(address), address, capabilities, place, None)


def driven(
    server: ScriptedServer,
    use: Callable[[RemoteEngine], Coroutine[Any, Any, Any]],
    *,
    capabilities: ServerCapabilities = CAPABILITIES,
    address: Address = ADDRESS,
    place: Path | None = None,
    store: CompletionStore | None = None,
    meter: Meter | None = None,
    patience: float = PATIENCE,
    outlives: bool = False,
    tell: Callable[[str], None] | None = None,
    on_report: Callable[[str, RemoteCounts], None] | None = None,
) -> Any:
    """What `use` of an engine gives that has the server's model as `llm`. What stops the engine is raised."""
    how: dict[str, Any] = {"patience": patience, "outlives": outlives, "tell": tell, "on_report": on_report}
    engine = RemoteEngine(store, meter, transport=server.transport, **how)
    engine.add("llm", address, capabilities, model_of(capabilities, address, place))

    async def main() -> Any:
        driver = asyncio.create_task(engine.drive())
        user = asyncio.create_task(use(engine))
        await asyncio.wait([driver, user], return_when=asyncio.FIRST_COMPLETED)
        try:
            return await (user if user.done() else driver)
        finally:
            driver.cancel()
            user.cancel()
            await asyncio.gather(driver, user, return_exceptions=True)

    return asyncio.run(asyncio.wait_for(main(), 20))


def wanted(text: str = "Question: 2 + 2?", keys: tuple[int, ...] = (1,), **more: Any) -> GenerateRequest:
    """A request for samples after plain text."""
    given = {"sampling": SamplingParams(0.8), "max_tokens": 50, "eos": model_of().eos, **more}
    return GenerateRequest(tuple(text.encode()), keys, **given)
