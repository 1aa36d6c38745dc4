"""Short requests to a server for text, and who sends them in the form that it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from qpdsl.executor.remote.dialects.dialect import CompletionChunk, HTTPRequest, Prompt, SampleRequest
from qpdsl.executor.remote.dialects.openai import OpenAIDialect
from qpdsl.executor.remote.server.connection import Connection
from qpdsl.executor.remote.server.failures import Refused, Unreachable
from qpdsl.executor.remote.server.server_capabilities import ServerCapabilities
from qpdsl.executor.requests.request import SampleConstraint, SamplingParams

# Two seeds of the range that samples take theirs from: one near its end, one that is no power of two.
SEEDS = (2**31 - 2, 20_261_122)
# Tokens of a probe's text. Two free texts of this length are the same about once in a million times even where a model
# is sure of itself (half a nat a token), and never where it is not.
LENGTH = 24
# A server that is busy is asked again; seconds between the tries where it does not say.
_TRIES, _PAUSE, _LONGEST_PAUSE = 4, 1.0, 20.0


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """One short sample. `prompt`: None for the client's first one; `sampling`: None for the client's own.

    `most`: tokens at most of an answer. `shape`: what the dialect is to ask for besides, as capabilities; None for the
    client's own.
    """

    prompt: Prompt | None = None
    sampling: SamplingParams | None = None
    seed: int = SEEDS[0]
    most: int = LENGTH
    stops: tuple[str, ...] = ()
    constraint: SampleConstraint | None = None
    shape: ServerCapabilities | None = None


@dataclass(frozen=True, slots=True)
class ProbeClient:
    """Asks one server for text of one model in one form: token ids, text or messages.

    `prompts` are alike; the first that the model has something to say to counts. `shape` is what the dialect is to ask
    for besides, as capabilities. `greedy`: its samples are, as far as nothing else is said; a model whose server takes
    no temperature samples at 1. `room`: tokens for a thought, beside those of the answer.
    """

    connection: Connection
    dialect: OpenAIDialect
    model: str
    prompts: Sequence[Prompt]
    shape: ServerCapabilities = field(default=ServerCapabilities())
    greedy: bool = True
    room: int = 0

    async def ask(self, request: ProbeRequest) -> CompletionChunk | None:
        """What is answered, None where the server or the dialect refuses. Raises Unreachable."""
        written = self.written(request)
        return None if written is None else await self.read(written.path, written.body)

    async def read(self, path: str, body: Mapping[str, Any]) -> CompletionChunk | None:
        """What a body is answered, None where the server refuses. Raises Unreachable."""
        answer = await self.post(path, body)
        try:
            return None if answer is None else self.dialect.read(answer)
        except (Refused, Unreachable):
            return None

    def written(self, request: ProbeRequest) -> HTTPRequest | None:
        """The request, None where the dialect has no fields for it."""
        sample = SampleRequest(
            self.model,
            self.prompts[0] if request.prompt is None else request.prompt,
            SamplingParams(temperature=0.0 if self.greedy else 1.0) if request.sampling is None else request.sampling,
            request.most + self.room,
            request.seed,
            request.shape or self.shape,
            request.stops,
            request.constraint,
        )
        try:
            return self.dialect.write(sample)
        except ValueError:
            return None

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The JSON of an answer, None where the server refuses. Raises Unreachable where it does not answer at all."""
        return await posted(self.connection, path, body)


async def posted(connection: Connection, path: str, body: Mapping[str, Any]) -> Any:
    """See `ProbeClient.post`."""
    for number in range(_TRIES):
        try:
            return await connection.post(path, body)
        except Refused:
            return None
        except Unreachable as failed:
            # 500 is what some servers answer to a field that they do not know.
            if failed.status == 500:
                return None
            if failed.stalled or number == _TRIES - 1:
                raise
            await asyncio.sleep(min(failed.retry_after or _PAUSE * 2**number, _LONGEST_PAUSE))
    return None
