"""The answer of a bare model: requests to the engine, the text of samples as it grows, and their final form."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from typing import Literal as OneOf

from qpdsl.executor.models.text_model import TextModel
from qpdsl.executor.requests.engine import Engine
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import Completion, Request, Sample, Watch
from qpdsl.executor.requests.ticket import Ticket
from qpdsl.executor.text.stop import Stops, StopWatch
from qpdsl.serve.answer_cut import held_back
from qpdsl.serve.exposed.bare_request import BareRequest
from qpdsl.serve.refusal import Refusal
from qpdsl.serve.served_model import Chosen, CompletionResponse, Piece, Progress, TokenUsage, no_pause
from qpdsl.serve.token_forms import TokenForms


class BareWork:
    """One request to a bare model, read and found good. See `Work`."""

    def __init__(self, model: TextModel, engine: Engine, request: BareRequest, fingerprint: str) -> None:
        self._model = model
        self._engine = engine
        self._request = request
        self._fingerprint = fingerprint
        self._forms = TokenForms(model, request.ids_as_text)
        self._texts: dict[int, _SampleText] = {}

    async def answer(self) -> CompletionResponse:
        """See `Work`."""
        asked = self._ask(_TextBuffer() if self._request.stops else None)
        try:
            for ticket in asked.tickets:
                await ticket
        except BaseException:
            asked.cancel()
            raise
        answer = self._answer(asked)
        return answer if self._request.token_ids else replace(answer, choices=tuple(map(_end, answer.choices)))

    async def stream(
        self, pause: Callable[[], float] = no_pause
    ) -> AsyncGenerator[Piece | Progress | CompletionResponse, None]:
        """See `Work`. The log-probabilities of tokens are known when a sample ends, so with them no piece comes before.

        The pieces together say all of a choice but why it ended, token ids too.
        """
        request = self._request
        buffer = _TextBuffer()
        asked = self._ask(buffer if request.stops or not request.logprobs else None)
        everything = asyncio.gather(*asked.tickets)

        def ended(done: asyncio.Future[Any]) -> None:
            if not done.cancelled():
                # Where nobody reads any further, nobody asks what it was.
                done.exception()
            buffer.changed.set()

        everything.add_done_callback(ended)
        told: dict[int, _Grown] = {}
        try:
            while not everything.done():
                await buffer.changed.wait()
                grew = buffer.take()
                for index, grown in () if request.logprobs else grew:
                    if index not in told and request.echo:
                        grown.text = self._model.decode(request.prompts[index // request.count]) + grown.text
                    yield self._piece(index, grown, told)
                if (seconds := pause()) > 0 and not everything.done():
                    await asyncio.wait((everything,), timeout=seconds)
            await everything
            answer = self._answer(asked)
            for index, choice in enumerate(answer.choices):
                shown = told.get(index, _Grown())
                ids = choice.extra["token_ids"]
                rest = _Grown(choice.text[len(shown.text) :], ids[len(shown.tokens) :])
                if rest.text or (rest.tokens and request.token_ids):
                    yield self._piece(index, rest, told, choice.logprobs)
            yield replace(answer, choices=tuple(_end(choice) for choice in answer.choices))
        finally:
            everything.cancel()
            asked.cancel()

    def _piece(
        self, index: int, grown: _Grown, told: dict[int, _Grown], logprobs: Mapping[str, Any] | None = None
    ) -> Piece:
        """What a choice has become longer by, as a piece, and as a part of what is told by now."""
        request = self._request
        told.setdefault(index, _Grown()).grow(grown.text, grown.tokens)
        extra = {"token_ids": grown.tokens} if request.token_ids else {}
        usage = None
        if request.continuous_usage:
            usage = TokenUsage(sum(map(len, request.prompts)), sum(len(shown.tokens) for shown in told.values()))
        return Piece(index, grown.text, logprobs, extra, usage)

    def _ask(self, buffer: _TextBuffer | None) -> _Asked:
        """Submits everything that the answer takes. Raises Refusal where the engine cannot serve some of it."""
        request, asked = self._request, _Asked([], [], [])
        for number, prompt in enumerate(request.prompts):

            def watch(index: int, first: int = number * request.count) -> Watch:
                assert buffer is not None
                text = self._texts[first + index] = _SampleText(self._model, request, buffer, first + index)
                return text

            if request.max_tokens:
                generated = request.generate(prompt, None if buffer is None else watch)
                asked.samples.append(self._submit(generated, asked))
            if request.prompt_logprobs and len(prompt) > 1:
                asked.prompts.append(self._submit(request.read(prompt), asked))
            if request.named_ids:
                asked.named.append(self._submit(request.read_named(prompt), asked))
        return asked

    def _submit(self, request: Request, asked: _Asked) -> Ticket:
        try:
            return self._engine.submit(self._model.name, request)
        except EngineError as error:
            asked.cancel()
            raise Refusal(str(error), code="not_served") from error

    def _answer(self, asked: _Asked) -> CompletionResponse:
        request = self._request
        samples = [ticket.result() for ticket in asked.samples]
        read = [ticket.result() for ticket in asked.prompts]
        choices: list[Chosen] = []
        beside: dict[str, Any] = {}
        for number, prompt in enumerate(request.prompts):
            told: tuple[float | None, ...] = ()
            if request.prompt_logprobs:
                told = (None, *(read.pop(0).logprobs if len(prompt) > 1 else ()))
            extra: dict[str, Any] = {}
            if request.prompt_logprobs and not request.echo:
                extra["prompt_logprobs"] = self._forms.prompt_logprobs(prompt, told)
            if request.token_ids:
                extra["prompt_token_ids"] = list(prompt)
            if request.endpoint == "chat":
                # A chat has one prompt, and what is told of it stands beside the choices.
                beside, extra = extra, {}
            drawn: tuple[Sample | None, ...] = samples[number].samples if samples else (None,) * request.count
            for place, sample in enumerate(drawn):
                tops: Mapping[int, float] | OneOf["own", "none"] = "own" if request.greedy_top else "none"
                if asked.named:
                    found = asked.named[number].result().logprobs
                    tops = dict(zip(request.named_ids, found, strict=True))
                choices.append(self._choice(number * request.count + place, prompt, told, sample, tops, extra))
        return CompletionResponse(tuple(choices), self._usage(samples, read), self._fingerprint, beside)

    def _choice(
        self,
        index: int,
        prompt: tuple[int, ...],
        told: tuple[float | None, ...],
        sample: Sample | None,
        tops: Mapping[int, float] | OneOf["own", "none"],
        extra: Mapping[str, Any],
    ) -> Chosen:
        """A choice of the answer; `told` are the log-probabilities of its prompt, where they are asked for.

        `tops`: see `TokenForms.logprobs`.
        """
        request = self._request
        before = self._model.decode(prompt) if request.echo else ""
        tokens: tuple[int, ...] = () if sample is None else sample.tokens
        text, stop = ("", None) if sample is None else self._text(index, sample)
        logprobs = None
        if request.logprobs:
            all_tokens = tokens
            values: tuple[float | None, ...] = () if sample is None else sample.logprobs
            if request.echo:
                all_tokens, values = (*prompt, *tokens), (*told, *values)
            offset = 0 if request.echo else len(before)
            logprobs = self._forms.logprobs(request.endpoint, all_tokens, values, tops, offset)
        extra = {**extra, "stop_reason": stop, "token_ids": list(tokens)}
        length = sample is None or sample.finish == "length"
        return Chosen(before + text, "length" if length else "stop", logprobs, extra)

    def _text(self, index: int, sample: Sample) -> tuple[str, str | None]:
        """The text of a sample and the stop text that ended it."""
        own = self._texts.get(index)
        return (self._model.decode(sample.tokens), None) if own is None else own.ended(sample.tokens)

    def _usage(self, samples: list[Completion], read: list[Completion]) -> TokenUsage:
        request = self._request
        sampled = sum(sample.size for completion in samples for sample in completion.samples)
        cached = sum(completion.cached for completion in samples)
        calls = [completion.calls for completion in (*samples, *read) if completion.calls is not None]
        if any(call.prompt_tokens is not None for call in calls):
            # Another server counted them, in tokens of its own.
            prompt = sum(call.prompt_tokens or 0 for call in calls)
            return TokenUsage(prompt, sampled, sum(call.cached_tokens for call in calls))
        return TokenUsage(sum(map(len, request.prompts)), sampled, cached)


@dataclass(frozen=True, slots=True)
class _Asked:
    """The tickets of a request: one for the samples of each prompt, one for each prompt that is read, and one for the
    ids that are named after each.
    """

    samples: list[Ticket]
    prompts: list[Ticket]
    named: list[Ticket]

    @property
    def tickets(self) -> list[Ticket]:
        return [*self.samples, *self.prompts, *self.named]

    def cancel(self) -> None:
        for ticket in self.tickets:
            ticket.cancel()


class _Grown:
    """What a choice has become longer by: text, and the tokens that it is made of or begins in."""

    __slots__ = ("text", "tokens")

    def __init__(self, text: str = "", tokens: list[int] | None = None) -> None:
        self.text = text
        self.tokens = tokens or []

    def grow(self, text: str, tokens: list[int]) -> None:
        self.text += text
        self.tokens += tokens


class _TextBuffer:
    """What choices have become longer by, in the order in which it is to be told."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self._grown: dict[int, _Grown] = {}

    def put(self, index: int, text: str, tokens: list[int]) -> None:
        grown = self._grown.get(index)
        if grown is None:
            grown = self._grown[index] = _Grown()
        grown.grow(text, tokens)
        self.changed.set()

    def take(self) -> list[tuple[int, _Grown]]:
        """What has come since the last time."""
        taken, self._grown = self._grown, {}
        self.changed.clear()
        return list(taken.items())


class _SampleText:
    """A `Watch` on the text of one sample. What could be the beginning of a stop text is held back until it is none."""

    def __init__(self, model: TextModel, request: BareRequest, buffer: _TextBuffer, index: int) -> None:
        self._model = model
        self._request = request
        self._buffer = buffer
        self._index = index
        self._watch = StopWatch(model.detokenizer, Stops(request.stops) if request.stops else None, self._grow)
        self._text = ""
        self._told = 0
        self._tokens: list[int] = []

    def push(self, token: int) -> bool:
        self._tokens.append(token)
        return self._watch.push(token)

    def ended(self, tokens: tuple[int, ...]) -> tuple[str, str | None]:
        """The text of the sample, and the stop text that ended it."""
        if self._watch.cut is None:
            text = self._model.decode(tokens)
            # Bytes that are no character yet, at the end of a piece, are written once and for all.
            return (text if text.startswith(self._text) else self._text), None
        stop = max((stop for stop in self._request.stops if self._text.endswith(stop)), key=len, default="")
        return (self._text if self._request.keeps_stop else self._text.removesuffix(stop)), stop

    def _grow(self, piece: str) -> None:
        self._text += piece
        # A stop text that is to be left out is no part of the answer.
        stops = () if self._request.keeps_stop else self._request.stops
        sure = len(self._text) - held_back(self._text, stops)
        if sure > self._told:
            tokens, self._tokens = self._tokens, []
            self._buffer.put(self._index, self._text[self._told : sure], tokens)
            self._told = sure


def _end(choice: Chosen) -> Chosen:
    """The choice without its token ids, which pieces have told or nobody asks for."""
    return replace(choice, extra={name: value for name, value in choice.extra.items() if name != "token_ids"})
