"""Requests to a scripted server, and its simplest answers."""

from __future__ import annotations

from typing import Any

from qpdsl.executor.remote.remote_engine import RemoteEngine
from qpdsl.executor.remote.server.address import Address
from qpdsl.executor.requests.request import (
    Completion,
    GenerateRequest,
    ReadRequest,
)
from qpdsl.executor.text.stop import Stops, StopWatch
from tests.support.remote.scripted_server import ADDRESS, Body, answer, model_of, wanted

IDS = Address("vllm", ADDRESS.url, "name", "zoo/counting")


def by_seed(body: Body, number: int) -> Body:
    return answer(f" It is {body['seed'] % 100}.")


def piece(text: str, finish: str | None = None, **more: Any) -> Body:
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish, **more}]}


def text_of(completion: Completion) -> list[str]:
    return [bytes(token for token in sample.tokens if token < 256).decode() for sample in completion.samples]


def stopping(stop: str, **more: Any) -> GenerateRequest:
    """A request whose samples end at a text."""
    detokenizer = model_of().detokenizer
    return wanted(watch=lambda index: StopWatch(detokenizer, Stops((stop,))), stops=(stop,), **more)


def one(request: GenerateRequest | ReadRequest) -> Any:
    async def use(engine: RemoteEngine) -> Completion:
        return await engine.submit("llm", request)

    return use
