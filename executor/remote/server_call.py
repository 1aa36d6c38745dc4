"""One request to a server, from when it is wanted to when it is answered: what a sample takes, or a reading."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from qpdsl.executor.models.text_model import TextModel
from qpdsl.executor.remote.dialects.dialect import CompletionChunk, Dialect, HTTPRequest
from qpdsl.executor.remote.dialects.openai import count_in
from qpdsl.executor.remote.request_queue import QueuedRequest
from qpdsl.executor.remote.scoring.reading import BadAnswer, Reading, Values
from qpdsl.executor.remote.server.abilities import Abilities
from qpdsl.executor.remote.server.address import Address
from qpdsl.executor.remote.server.connection import Connection
from qpdsl.executor.remote.server.errors import ServerError, Unreachable
from qpdsl.executor.remote.text_tokenizer import is_text
from qpdsl.executor.remote.written_sample import WrittenSample, answer_of, record_of
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import Calls, GenerateRequest, Sample
from qpdsl.executor.requests.ticket import Ticket

# Seconds that a token may take where an answer comes as a whole.
_SLOWEST_TOKEN = 2.0
# Bytes of text that a token has at least, on the average of a prompt.
_LEAST_TOKEN = 3


@dataclass(eq=False)
class ModelAtServer:
    """A model with all that is known of it; its tokens are those of `text`."""

    id: str
    address: Address
    abilities: Abilities
    text: TextModel
    dialect: Dialect


@dataclass(frozen=True, slots=True)
class Billed:
    """Tokens as the server counted them; `prompt` is None where it does not say."""

    prompt: int | None
    cached: int
    sampled: int


@dataclass(eq=False)
class ServerCall(QueuedRequest, ABC):
    """A request to a server, in its queue. `key` is what its answer is kept under.

    `attempts` failed before; `answers`: how many requests the server had answered when the first did.
    """

    model: ModelAtServer = field(kw_only=True)
    key: bytes = field(kw_only=True)
    attempts: int = field(default=0, init=False)
    answers: int = field(default=0, init=False)

    @abstractmethod
    async def send(self, connection: Connection) -> None:
        """Gets the answer. Raises Refused, Unreachable, EngineError."""

    @abstractmethod
    def replay(self, kept: bytes) -> bool:
        """Takes what was kept in the place of an answer; False where it does not do. Raises EngineError."""

    @property
    @abstractmethod
    def record(self) -> Any:
        """The answer as JSON, to be kept."""

    @property
    @abstractmethod
    def billed(self) -> Billed:
        """What the answer took; of one that broke off, as far as it came."""

    @abstractmethod
    def finish(self, taken: Calls) -> None:
        """The answer is there, and kept."""


@dataclass(eq=False)
class SampleCall(ServerCall):
    """Sample `index` of a ticket's request.

    With `streams`, the answer is read as it is written: the sample's watch may end it, which closes the connection.
    `begun` is called once, when something was written.
    """

    ticket: Ticket = field(kw_only=True)
    index: int = field(kw_only=True)
    ask: HTTPRequest = field(kw_only=True)
    streams: bool = field(kw_only=True)
    begun: Callable[[], None] = field(default=lambda: None, kw_only=True)
    _written: WrittenSample | None = field(default=None, init=False)
    _sample: Sample | None = field(default=None, init=False)
    _answer: CompletionChunk = field(default=CompletionChunk(), init=False)

    @property
    def request(self) -> GenerateRequest:
        request = self.ticket.request
        assert isinstance(request, GenerateRequest)
        return request

    async def send(self, connection: Connection) -> None:
        written = self._fresh()
        dialect, body = self.model.dialect, self.ask.body
        if self.streams:
            async with aclosing(connection.stream(self.ask.path, dialect.streamed(body))) as events:
                ended = False
                async for event in events:
                    ended_before, ended = ended, self._push(written, event)
                    if written.begun:
                        self.begun()
                    # Where the server has ended too, or is about to, its last events only count.
                    if ended and written.answer.finish is None and (ended_before or not written.ended_by_model):
                        break
        else:
            slowest = _SLOWEST_TOKEN * min(self.request.max_tokens, 1 << 16)
            answer = await connection.post(self.ask.path, body, stall=connection.stall + slowest)
            self._push(written, answer)
        if not self._settle(written):
            raise Unreachable(f"{self.model.address.url} gives half an answer")

    def replay(self, kept: bytes) -> bool:
        try:
            answer = answer_of(json.loads(kept))
        except ValueError:
            return False
        if answer is None:
            return False
        written = self._fresh()
        written.push(answer)
        return self._settle(written)

    @property
    def record(self) -> Any:
        return record_of(self._answer)

    @property
    def billed(self) -> Billed:
        written = self._written
        if written is None:
            return Billed(None, 0, 0)
        answer = written.answer
        prompt = answer.prompt_tokens
        if prompt is None and (written.begun or answer.finish is not None):
            prompt = self._prompt_size()
        return Billed(prompt, answer.cached_tokens or 0, answer.sampled_tokens or 0)

    def _prompt_size(self) -> int:
        """What the prompt takes where the server does not get to say: of text as many tokens as it hardly has."""
        tokens = self.request.prompt
        return -(-len(tokens) // _LEAST_TOKEN) if is_text(self.model.text.tokenizer) else len(tokens)

    def finish(self, taken: Calls) -> None:
        assert self._sample is not None
        self.ticket.finish_sample(self.index, self._sample, self._answer.cached_tokens or 0, taken)

    def _fresh(self) -> WrittenSample:
        if self._written is None:
            model = self.model
            told = model.abilities.token_ids and isinstance(self.ask.body.get("prompt"), list)
            self._written = WrittenSample(self.request, self.index, model.text, told=told)
        else:
            self._written.restart()
        return self._written

    def _push(self, written: WrittenSample, answer: Any) -> bool:
        """Takes an answer, or an event of a stream; True where the sample ends in it. What is refused is paid for."""
        dialect = self.model.dialect
        try:
            return written.push(dialect.read(answer))
        except ServerError:
            written.push(dialect.counts(answer))
            raise

    def _settle(self, written: WrittenSample) -> bool:
        self._sample, self._answer = written.sample(), written.answer
        return self._sample is not None


@dataclass(eq=False)
class ReadingCall(ServerCall):
    """A reading, whose values `result` waits for."""

    reading: Reading = field(kw_only=True)
    result: asyncio.Future[tuple[Values, Calls]] = field(kw_only=True)
    _values: Values = field(default=(), init=False)
    _usage: dict[str, Any] = field(default_factory=dict, init=False)

    async def send(self, connection: Connection) -> None:
        answer = await connection.post(self.reading.path, self.reading.body)
        self._usage = _usage_of(answer)
        try:
            self._values = self.reading.read(answer)
        except BadAnswer as error:
            raise EngineError(f"{self.model.address.url} {error}") from error

    def replay(self, kept: bytes) -> bool:
        try:
            values, usage = json.loads(kept)
            self._values, self._usage = tuple(tuple(row) for row in values), dict(usage)
        except (ValueError, TypeError):
            return False
        return True

    @property
    def record(self) -> Any:
        return [[list(row) for row in self._values], self._usage]

    @property
    def billed(self) -> Billed:
        cached = count_in(self._usage.get("prompt_tokens_details"), "cached_tokens")
        sampled = count_in(self._usage, "completion_tokens")
        return Billed(count_in(self._usage, "prompt_tokens"), cached or 0, sampled or 0)

    def finish(self, taken: Calls) -> None:
        if not self.result.done():
            self.result.set_result((self._values, taken))


def _usage_of(answer: Any) -> dict[str, Any]:
    """What an answer to a reading says of tokens; SGLang's own endpoints have it under another name."""
    if not isinstance(answer, dict):
        return {}
    meta = answer.get("meta_info")
    if not isinstance(meta, dict):
        usage = answer.get("usage")
        return usage if isinstance(usage, dict) else {}
    counts = {name: meta.get(name) for name in ("prompt_tokens", "completion_tokens")}
    return {**counts, "prompt_tokens_details": {"cached_tokens": meta.get("cached_tokens")}}
