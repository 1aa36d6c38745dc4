"""One request to a server, from when it is wanted to when it is answered: what a sample takes, or a reading."""

from __future__ import annotations

import asyncio
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import astuple, dataclass, field
from hashlib import blake2b
from typing import Any

from qpdsl.executor.models.text_model import TextModel
from qpdsl.executor.remote.completion_store import request_key
from qpdsl.executor.remote.dialects.dialect import (
    BadAnswer,
    CompletionChunk,
    HTTPRequest,
    Messages,
    Prompt,
    Question,
    SampleRequest,
    Values,
)
from qpdsl.executor.remote.dialects.openai import OpenAIDialect, count_in
from qpdsl.executor.remote.remote_model import MIN_TOKEN_BYTES, UNBOUNDED, is_text, messages_of, text_of
from qpdsl.executor.remote.request_queue import QueuedRequest, prefix_of
from qpdsl.executor.remote.server.address import Address
from qpdsl.executor.remote.server.connection import Connection
from qpdsl.executor.remote.server.failures import ServerError, Unreachable
from qpdsl.executor.remote.server.server_capabilities import ServerCapabilities
from qpdsl.executor.remote.written_sample import WrittenSample, answer_of
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import Calls, ConstraintKind, Feature, GenerateRequest, Request, Sample
from qpdsl.executor.requests.ticket import Ticket

# Servers take seeds of at most 31 bits, or are said to.
_MAX_SEED = 2**31 - 1
# Seconds that a token may take where an answer comes as a whole.
_SLOWEST_TOKEN = 2.0
# Tokens that may stand around a thought, and between it and the answer.
_MARKS = 16


@dataclass(eq=False)
class ModelAtServer:
    """A model with all that is known of it; its tokens are those of `text`."""

    id: str
    address: Address
    capabilities: ServerCapabilities
    text: TextModel
    dialect: OpenAIDialect

    def refusal(self, request: Request) -> str | None:
        """Why the server would not do what a request says, to be read after its name; None where it would."""
        able, drawn = self.capabilities, request.generation
        calls = drawn is not None and drawn.constraint is not None and bool(drawn.constraint.tools)
        calls = calls and able.calls_in_fields
        # Without seeds a sample is recorded, where the program permits that.
        others: set[Feature] = {"seeds"} if drawn is None or not calls else {"seeds", drawn.held_to}
        if (inability := able.for_engine.refusal(request.features - others)) is not None:
            return inability
        room = None if able.context is None else able.context - (request.samples > 0)
        if room is not None and able.endpoint == "ids" and request.length > room:
            return f"takes {able.context} tokens, and the context has {request.length}"
        if drawn is None:
            return None
        if drawn.mask is not None and drawn.constraint is None and not drawn.sampling.processors.min_tokens:
            return "cannot be constrained without the text of the grammar"
        if (
            drawn.mask is not None
            and drawn.constraint is not None
            and not calls
            and drawn.held_to not in self._held_after(drawn.prompt)
        ):
            return "holds only answers to constraints, and no thought has ended before this one"
        sampling = drawn.sampling
        wanted = {
            "temperature": not (sampling.greedy or (able.own_temperature and sampling.temperature == 1)),
            "top_k": sampling.top_k is not None,
            "top_p": sampling.top_p not in (None, 1.0),
            "min_p": bool(sampling.min_p),
        }
        processors = sampling.processors
        if lacking := [name for name in processors.given if name not in self.dialect.processors]:
            return f"has no `{lacking[0]}`"
        if drawn.rank is not None:
            return "has no `first_tokens=likeliest`"
        if drawn.drawn and (processors.presence or processors.frequency):
            return "would count what a sample has drawn before as its prompt, and penalties are of what it draws"
        missing = [name for name, is_wanted in wanted.items() if is_wanted and not getattr(able, name)]
        if missing:
            return f"ignores `{missing[0]}`, as a probe of its server showed"
        bounded = drawn.thought is not None and drawn.thought.bounded
        unbound = bounded and (able.thinking is None or able.thinking.bound is None)
        return "takes no bound on a thought, as a probe of its server showed" if unbound else None

    def _held_after(self, prompt: tuple[int, ...]) -> frozenset[ConstraintKind]:
        """What a server holds the text behind a prompt to."""
        able, marks = self.capabilities, self.text.thought_marks
        if is_text(self.text.tokenizer):
            return able.constraints if messages_of(prompt) is None else able.answers_held
        closed = marks is not None and marks.closed(prompt) is not None
        return able.answers_held if closed else able.constraints

    def request_for(self, request: GenerateRequest) -> HTTPRequest:
        """What is sent for each sample of a request, but for the seed. Raises EngineError."""
        able, prompt = self.capabilities, self._prompt(request.prompt)
        # A server that parts thoughts from answers would end a thought at a stop, and shows the model's mark of the end
        # where it is to show stops.
        parts = isinstance(prompt, Messages) and able.thinking is not None
        stops = request.stops if able.names_stop and not parts else ()
        most = None if request.max_tokens >= UNBOUNDED // 2 else request.max_tokens
        bound, thought = None, request.thought
        if thought is not None:
            # A server bounds both together. Without a bound on the thought, none would be the answer's.
            bound = thought.limit if thought.bounded else None
            most = None if bound is None or most is None else bound + most + _MARKS
        # vLLM refuses a bound that nothing could reach.
        most = most if most is None or able.context is None else min(most, able.context)
        constraint = None if request.mask is None else request.constraint
        wanted = SampleRequest(self.address.name, prompt, request.sampling, most, 0, able, stops, constraint, bound)
        try:
            return self.dialect.write(wanted)
        except ValueError as error:
            raise EngineError(f"{self.id} cannot be asked for this: {error}") from error

    def _prompt(self, tokens: tuple[int, ...]) -> Prompt:
        """The prompt as the server takes it. Raises EngineError."""
        if not is_text(self.text.tokenizer):
            return tokens
        messages = messages_of(tokens)
        if messages is None:
            if self.capabilities.endpoint == "chat":
                raise EngineError(f"{self.id} takes chats only: begin with `chat`, not `prompt`")
            return text_of(tokens)
        if not self.capabilities.chat:
            raise EngineError(f"{self.id} takes no chats: begin with `prompt`, or add `tokenizer=` to its id")
        if messages.begun is not None and not (messages.begun.text or messages.begun.thought):
            raise EngineError(f"{self.id} always thinks: its server knows no `think=off`")
        if messages.begun is not None and not self.capabilities.prefill:
            raise EngineError(f"{self.id} cannot continue an answer: add `tokenizer=` to its id")
        return messages


@dataclass(frozen=True, slots=True)
class Billed:
    """Tokens as the server counted them; `prompt` is None where it does not say."""

    prompt: int | None
    cached: int
    sampled: int


@dataclass(eq=False)
class ServerCall(QueuedRequest, ABC):
    """A request to a server, in its queue. `key` is what its answer is kept under.

    `attempts` failed before, of which `faults` may be its own; `answers`: how many requests the server had answered at
    the first of these; `told`: when its last token came, on the clock of `time.monotonic`, 0 where none has.
    """

    model: ModelAtServer = field(kw_only=True)
    key: bytes = field(kw_only=True)
    attempts: int = field(default=0, init=False)
    faults: int = field(default=0, init=False)
    answers: int = field(default=0, init=False)
    told: float = field(default=0.0, init=False)

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
        drawn = self.ticket.request.generation
        assert drawn is not None
        return drawn

    async def send(self, connection: Connection) -> None:
        written = self._fresh()
        dialect, body = self.model.dialect, self.ask.body
        if self.streams:
            async with aclosing(connection.stream(self.ask.path, dialect.streamed(body))) as events:
                ended, last = False, time.monotonic()
                async for event in events:
                    ended_before, ended = ended, self._push(written, event)
                    now = time.monotonic()
                    if written.goes_on:
                        self.told = last = now
                    if now - last > connection.stall:
                        raise Unreachable(f"{connection.url} sends events without tokens", stalled=True)
                    if written.begun:
                        self.begun()
                    # Where the server has shut down too, or is about to, its last events only count.
                    if ended and written.answer.finish is None and (ended_before or not written.ended_by_model):
                        break
        else:
            slowest = _SLOWEST_TOKEN * min(self.request.max_tokens, 1 << 16)
            answer = await connection.post(self.ask.path, body, stall=connection.stall + slowest)
            self._push(written, answer)
        if not self._settle(written):
            raise Unreachable(f"{self.model.address.url} sent a truncated answer", ended=self.streams)

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
        return astuple(self._answer)

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
        return -(-len(tokens) // MIN_TOKEN_BYTES) if is_text(self.model.text.tokenizer) else len(tokens)

    def finish(self, taken: Calls) -> None:
        assert self._sample is not None
        self.ticket.finish_sample(self.index, self._sample, self._answer.cached_tokens or 0, taken)

    def _fresh(self) -> WrittenSample:
        if self._written is None:
            model = self.model
            told = model.capabilities.token_ids and isinstance(self.ask.body.get("prompt"), list)
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

    reading: Question = field(kw_only=True)
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


def sample_calls(model: ModelAtServer, ticket: Ticket, request: GenerateRequest) -> list[SampleCall]:
    """One call for each sample of a request. Raises EngineError for what the server has no field for."""
    ask, greedy = model.request_for(request), request.sampling.greedy
    able, held = model.capabilities, request.constraint
    streams = able.streams and request.max_tokens > 1 and (request.watch is not None or request.lead)
    # A call is of use when it is whole.
    streams = streams and not (able.calls_in_fields and held is not None and held.tools)
    more = ["sample", list(request.stops)]
    whole = request_key(model.address, model.capabilities.version, ask.path, {**ask.body, "seed": 0}, more)
    place = (request.client, request.priority, prefix_of(request.prompt))
    calls = []
    for index, key in enumerate(request.keys):
        seed = seed_of(0 if greedy else key, 0 if greedy else request.drawn, model.capabilities.largest_seed)
        own = blake2b(whole + seed.to_bytes(8, "big"), digest_size=32).digest()
        one = HTTPRequest(ask.path, {**ask.body, "seed": seed})
        calls.append(SampleCall(*place, model=model, key=own, ticket=ticket, index=index, ask=one, streams=streams))
    return calls


def seed_of(key: int, drawn: int, largest: int) -> int:
    """The seed of a sample that has a noise key and `drawn` tokens already, from 1 to below `largest`.

    0 and the largest stand for a seed at random on some servers.
    """
    digest = blake2b(f"{key} {drawn}".encode(), digest_size=8).digest()
    return 1 + int.from_bytes(digest, "big") % (min(_MAX_SEED, largest) - 1)
