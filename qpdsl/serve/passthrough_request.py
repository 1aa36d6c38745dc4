"""A request to a model itself, and its answer: requests to the engine, the text of samples as it grows, final forms."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Literal

from qpdsl.executor.models.text_model import TextModel
from qpdsl.executor.requests.engine import Engine
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import (
    Client,
    Completion,
    GenerateRequest,
    LogProbRequest,
    Mask,
    Request,
    Sample,
    SampleConstraint,
    SamplingParams,
    Thought,
    TreeRequest,
    Watch,
)
from qpdsl.executor.requests.ticket import Ticket
from qpdsl.executor.runtime.generate.continuation import thought_tokens
from qpdsl.executor.runtime.generate.thought import ThoughtWatch, submit
from qpdsl.executor.runtime.generate.turn import thought_of
from qpdsl.executor.runtime.instance.candidates import noise_key
from qpdsl.executor.text.detokenizer import Tokens
from qpdsl.executor.text.stop import Stops, StopWatch
from qpdsl.serve.completion_request import Endpoint, Refusal
from qpdsl.serve.served_model import CompletionChoice, CompletionResponse, Delta, Progress, TokenUsage, no_pause
from qpdsl.serve.streamed_text import Growth, PendingUpdates, StrippedText, held_back
from qpdsl.serve.token_forms import TokenForms
from qpdsl.serve.written_calls import WrittenCalls


@dataclass(eq=False, kw_only=True)
class PassthroughRequest:
    """See `PreparedRequest`: `count` samples of each of `prompts`, which are token ids.

    A prompt with `max_tokens` 0 is only read. `eos` are the ids that end a sample. A sample ends behind the first of
    `stops`, which its text has where `keeps_stop`. `logprobs`: those of the sampled tokens are given, with `greedy_top`
    as the likeliest ones too, or those of `named_ids` in their place, where one token is sampled; `prompt_logprobs`:
    those of the prompt. `echo`: the text begins with the prompt's. `token_ids`: the ids are given; `ids_as_text`: and
    stand for the texts of tokens in log-probabilities. `continuous_usage`: each delta of a stream has what the
    request has cost up to there. `place`: where a sample begins that has a thought, before its first mark or in it;
    None where the model answers at once. `thought_bound`: the most tokens of a thought; `max_tokens` are those of both.
    `calls`: how an answer may end in a call; None where there are no tools.
    """

    model: TextModel
    engine: Engine
    fingerprint: str
    endpoint: Endpoint
    prompts: tuple[tuple[int, ...], ...]
    sampling: SamplingParams
    max_tokens: int
    seed: int
    count: int = 1
    eos: frozenset[int] = frozenset()
    stops: tuple[str, ...] = ()
    keeps_stop: bool = False
    mask: Callable[[], Mask] | None = None
    constraint: SampleConstraint | None = None
    calls: WrittenCalls | None = None
    logprobs: bool = False
    greedy_top: bool = False
    named_ids: tuple[int, ...] = ()
    prompt_logprobs: bool = False
    echo: bool = False
    token_ids: bool = False
    ids_as_text: bool = False
    continuous_usage: bool = False
    place: Literal["opening", "thought"] | None = None
    thought_bound: int | None = None
    client: Client = field(default=Client())

    def __post_init__(self) -> None:
        self._forms = TokenForms(self.model, self.ids_as_text)
        self._texts: dict[int, _SampleText | _ThoughtText] = {}

    async def answer(self) -> CompletionResponse:
        """See `PreparedRequest`."""
        asked = self._ask(PendingUpdates() if self.stops or self.place is not None else None)
        try:
            for ticket in asked.tickets:
                await ticket
        except BaseException:
            asked.cancel()
            raise
        answer = self._answer(asked)
        return answer if self.token_ids else replace(answer, choices=tuple(map(_end, answer.choices)))

    async def stream(
        self, pause: Callable[[], float] = no_pause
    ) -> AsyncGenerator[Delta | Progress | CompletionResponse, None]:
        """See `PreparedRequest`. Log-probabilities are known when a sample ends: with them no delta comes before.

        The deltas together are all of a choice but why it ended, token ids too.
        """
        updates = PendingUpdates()
        watches = self.stops or not self.logprobs or self.place is not None
        asked = self._ask(updates if watches else None)
        everything = asyncio.gather(*asked.tickets)
        sent: dict[int, Growth] = {}
        try:
            async for _, grown in updates.batches(everything, pause):
                for index, growth in () if self.logprobs else grown.items():
                    if index not in sent and self.echo:
                        growth.text = self._shown_prompt(self.prompts[index // self.count]) + growth.text
                    yield self._delta(index, growth, sent)
            await everything
            answer = self._answer(asked)
            for index, choice in enumerate(answer.choices):
                shown = sent.get(index, Growth())
                ids, thought = choice.extra["token_ids"], choice.thought or ""
                rest = Growth(choice.text[len(shown.text) :], ids[len(shown.tokens) :], thought[len(shown.thought) :])
                rest.thinking = max(0, min(len(rest.tokens), self._thinking(index) - shown.thinking))
                if rest.text or rest.thought or (rest.tokens and self.token_ids):
                    yield self._delta(index, rest, sent, choice.logprobs)
            yield replace(answer, choices=tuple(_end(choice) for choice in answer.choices))
        finally:
            everything.cancel()
            asked.cancel()

    def _delta(
        self, index: int, growth: Growth, sent: dict[int, Growth], logprobs: Mapping[str, Any] | None = None
    ) -> Delta:
        """What a choice has grown by, which becomes a part of what was sent."""
        sent.setdefault(index, Growth()).add(growth)
        extra = {"token_ids": growth.tokens} if self.token_ids else {}
        usage = None
        if self.continuous_usage:
            sampled = sum(len(shown.tokens) for shown in sent.values())
            answers = sampled - sum(shown.thinking for shown in sent.values())
            usage = TokenUsage(sum(map(len, self.prompts)), sampled, answer_tokens=answers)
        return Delta(index, growth.text, logprobs, extra, usage, growth.thought)

    def _ask(self, buffer: PendingUpdates | None) -> _Asked:
        """Submits everything that the answer takes. Raises Refusal where the engine cannot serve some of it."""
        asked = _Asked([], [], [])
        for number, prompt in enumerate(self.prompts):

            def watch(index: int, first: int = number * self.count) -> Watch:
                assert buffer is not None
                kind = _SampleText if self.place is None else _ThoughtText
                text = self._texts[first + index] = kind(self, buffer, first + index)
                return text

            if self.max_tokens:
                generated = self._generate(prompt, None if buffer is None else watch)
                asked.samples.append(self._submit(generated, asked))
            if self.prompt_logprobs and len(prompt) > 1:
                asked.prompts.append(self._submit(self._read(prompt), asked))
            if self.named_ids:
                asked.named.append(self._submit(self._read_named(prompt), asked))
        return asked

    def _submit(self, request: Request, asked: _Asked) -> Ticket:
        try:
            return submit(self.engine, self.model.name, request)
        except EngineError as error:
            asked.cancel()
            raise Refusal(str(error), code="not_served") from error

    def _answer(self, asked: _Asked) -> CompletionResponse:
        samples = [ticket.result() for ticket in asked.samples]
        read = [ticket.result() for ticket in asked.prompts]
        choices: list[CompletionChoice] = []
        beside: dict[str, Any] = {}
        for number, prompt in enumerate(self.prompts):
            told: tuple[float | None, ...] = ()
            if self.prompt_logprobs:
                told = (None, *(read.pop(0).logprobs if len(prompt) > 1 else ()))
            extra: dict[str, Any] = {}
            if self.prompt_logprobs and not self.echo:
                extra["prompt_logprobs"] = self._forms.prompt_logprobs(prompt, told)
            if self.token_ids:
                extra["prompt_token_ids"] = list(prompt)
            if self.endpoint == "chat":
                # A chat has one prompt, and what is told of it stands beside the choices.
                beside, extra = extra, {}
            drawn: tuple[Sample | None, ...] = samples[number].samples if samples else (None,) * self.count
            for place, sample in enumerate(drawn):
                tops: Mapping[int, float] | Literal["own", "none"] = "own" if self.greedy_top else "none"
                if asked.named:
                    found = asked.named[number].result().logprobs
                    tops = dict(zip(self.named_ids, found, strict=True))
                choices.append(self._choice(number * self.count + place, prompt, told, sample, tops, extra))
        return CompletionResponse(tuple(choices), self._usage(samples, read), self.fingerprint, beside)

    def _choice(
        self,
        index: int,
        prompt: tuple[int, ...],
        told: tuple[float | None, ...],
        sample: Sample | None,
        tops: Mapping[int, float] | Literal["own", "none"],
        extra: Mapping[str, Any],
    ) -> CompletionChoice:
        """A choice of the answer; `told` are the log-probabilities of its prompt, where they are asked for.

        `tops`: see `TokenForms.logprobs`.
        """
        tokens: tuple[int, ...] = () if sample is None else sample.tokens
        thought: str | None = None
        if sample is None:
            text, stop = self.model.decode(prompt) if self.echo else "", None
        else:
            text, thought, stop = self._text(index, sample)
            text = self._shown_prompt(prompt) + text if self.echo else text
        logprobs = None
        if self.logprobs:
            all_tokens = tokens
            values: tuple[float | None, ...] = () if sample is None else sample.logprobs
            if self.echo:
                all_tokens, values = (*prompt, *tokens), (*told, *values)
            earlier = () if self.echo else self.before(index)
            logprobs = self._forms.logprobs(self.endpoint, all_tokens, values, tops, earlier)
        extra = {**extra, "stop_reason": stop, "token_ids": list(tokens)}
        if self.calls is not None and sample is not None and sample.finish in ("eos", "match"):
            own = self._texts.get(index)
            begins = own.answer if isinstance(own, _ThoughtText) else 0
            origin = str(sample_keys(self.seed, prompt, self.count)[index % self.count])
            if (found := self.calls.read(text, tokens[begins:], origin)) is not None:
                return CompletionChoice(found[0], "tool_calls", logprobs, extra, thought, found[1])
        length = sample is None or sample.finish in ("length", "thought")
        return CompletionChoice(text, "length" if length else "stop", logprobs, extra, thought)

    def _text(self, index: int, sample: Sample) -> tuple[str, str | None, str | None]:
        """The text of a sample, the thought before it, and the stop text that ended it."""
        own = self._texts.get(index)
        return (self.written(index, sample.tokens), None, None) if own is None else own.ended(sample.tokens)

    def _thinking(self, index: int) -> int:
        """How many tokens the thought of a choice has."""
        own = self._texts.get(index)
        return own.thought_tokens if isinstance(own, _ThoughtText) else 0

    def before(self, index: int) -> tuple[int, ...]:
        """The tokens whose text that of a sample goes on with; an answer in a conversation begins its own."""
        return self.prompts[index // self.count] if self.endpoint == "text" else ()

    def written(self, index: int, tokens: tuple[int, ...]) -> str:
        """The text of the tokens of a sample."""
        before = self.before(index)
        return self.model.detokenizer.added(before, before + tokens)

    def _shown_prompt(self, prompt: tuple[int, ...]) -> str:
        """The text of a prompt before a sample, which completes a letter that the prompt only begins."""
        return self.model.decode(prompt).removesuffix(self.model.detokenizer.tail(prompt))

    def _usage(self, samples: list[Completion], read: list[Completion]) -> TokenUsage:
        drawn = [sample for completion in samples for sample in completion.samples]
        sampled = sum(sample.size for sample in drawn)
        answers = sampled - sum(map(thought_tokens, drawn))
        cached = sum(completion.cached for completion in samples)
        calls = [completion.calls for completion in (*samples, *read) if completion.calls is not None]
        if any(call.prompt_tokens is not None for call in calls):
            # Another server counted them, in tokens of its own.
            prompt = sum(call.prompt_tokens or 0 for call in calls)
            return TokenUsage(prompt, sampled, sum(call.cached_tokens for call in calls), answers)
        return TokenUsage(sum(map(len, self.prompts)), sampled, cached, answers)

    def _generate(self, prompt: tuple[int, ...], watch: Callable[[int], Watch] | None) -> GenerateRequest:
        """The engine's request for the samples of a prompt."""
        return GenerateRequest(
            prompt,
            sample_keys(self.seed, prompt, self.count),
            self.sampling,
            self.max_tokens,
            self.eos,
            watch,
            self.mask,
            # A constraint leaves few ids, and forces many: neither changes a token.
            jump=self.mask is not None,
            sparse=self.mask is not None,
            logprobs=self.logprobs,
            constraint=self.constraint,
            stops=self.stops,
            thought=self._thought(),
            client=self.client,
        )

    def _thought(self) -> Thought | None:
        """What the engine's request says of the thoughts before the answers."""
        marks = self.model.thought_marks
        if self.place is None or marks is None:
            return None
        return thought_of(marks, self.place, self.thought_bound, self.max_tokens)

    def _read(self, prompt: tuple[int, ...]) -> LogProbRequest:
        """The engine's request for the log-probabilities of a prompt of two tokens or more."""
        return LogProbRequest(prompt[:1], prompt[1:], client=self.client)

    def _read_named(self, prompt: tuple[int, ...]) -> TreeRequest:
        """The engine's request for the log-probabilities of the ids that are named, as the token after a prompt."""
        return TreeRequest(prompt, tuple((id,) for id in self.named_ids), client=self.client)


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


class _Answer:
    """An answer's text while it grows. What could be the beginning of a stop text is held back until it is none.

    What could be that of a call is, too; the call itself is told at the end.
    """

    def __init__(self, request: PassthroughRequest) -> None:
        self._request = request
        self._text = ""
        self._sent = 0
        self._calls = False

    def draw(self, token: int) -> None:
        """Takes a token before its text."""
        calls = self._request.calls
        self._calls = self._calls or (calls is not None and calls.begins_with(token))

    def grow(self, piece: str) -> str:
        """What may be sent now that one more piece is known."""
        self._text += piece
        # A stop text that is to be left out is no part of the answer.
        stops = () if self._request.keeps_stop else self._request.stops
        sure = len(self._text) - held_back(self._text, stops)
        if self._request.calls is not None:
            sure = 0 if self._calls else min(sure, self._request.calls.sure(self._text))
        fresh = self._text[self._sent : sure]
        self._sent = max(self._sent, sure)
        return fresh

    @property
    def stopped(self) -> tuple[str, str]:
        """The text as it is given, and the stop text that ended it."""
        stop = max((stop for stop in self._request.stops if self._text.endswith(stop)), key=len, default="")
        return (self._text if self._request.keeps_stop else self._text.removesuffix(stop)), stop


class _SampleText:
    """A `Watch` on the text of one sample."""

    def __init__(self, request: PassthroughRequest, buffer: PendingUpdates, index: int) -> None:
        self._request = request
        self._buffer = buffer
        self._index = index
        stops = Stops(request.stops) if request.stops else None
        self._watch = StopWatch(request.model.detokenizer, stops, self._grow, earlier=request.before(index))
        self._answer = _Answer(request)
        self._tokens: list[int] = []

    def push(self, token: int) -> bool:
        self._tokens.append(token)
        self._answer.draw(token)
        return self._watch.push(token)

    def ended(self, tokens: tuple[int, ...]) -> tuple[str, str | None, str | None]:
        """The text of the sample, the thought before it, and the stop text that ended it."""
        if self._watch.cut is None:
            return self._request.written(self._index, tokens), None, None
        text, stop = self._answer.stopped
        return text, None, stop

    def _grow(self, piece: str) -> None:
        if fresh := self._answer.grow(piece):
            tokens, self._tokens = self._tokens, []
            self._buffer.grow(self._index, Growth(fresh, tokens))


class _ThoughtText(ThoughtWatch):
    """A `Watch` on a sample that has a thought before its answer. Stop texts are the answer's."""

    def __init__(self, request: PassthroughRequest, buffer: PendingUpdates, index: int) -> None:
        marks = request.model.thought_marks
        assert marks is not None and request.place is not None
        self._request = request
        self._buffer = buffer
        self._index = index
        self._stripped = StrippedText()
        self._answer = _Answer(request)
        self._new: list[int] = []
        super().__init__(marks, request.place, (), self._thinks, self._answers)

    def push(self, token: int) -> bool:
        self._new.append(token)
        if self.place == "answer":
            self._answer.draw(token)
        return super().push(token)

    def goes_on(self, forced: Tokens) -> bool:
        self._new += forced
        return super().goes_on(forced)

    def ended(self, tokens: tuple[int, ...]) -> tuple[str, str | None, str | None]:
        """See `_SampleText`."""
        parted = self._marks.parted(tokens, inside=self._request.place == "thought")
        if self.cut is None:
            return parted.answer, parted.thought, None
        text, stop = self._answer.stopped
        return text, parted.thought, stop

    def _thinks(self, earlier: Tokens, leading: bool) -> StopWatch:
        return StopWatch(self._request.model.detokenizer, None, self._think, None, earlier, leading=leading)

    def _answers(self, earlier: Tokens, leading: bool) -> StopWatch:
        stops = Stops(self._request.stops) if self._request.stops else None
        return StopWatch(self._request.model.detokenizer, stops, self._grow, None, earlier, leading=leading)

    def _think(self, piece: str) -> None:
        if fresh := self._stripped.feed(piece):
            tokens, self._new = self._new, []
            self._buffer.grow(self._index, Growth("", tokens, fresh, len(tokens)))

    def _grow(self, piece: str) -> None:
        if fresh := self._answer.grow(piece):
            tokens, self._new = self._new, []
            self._buffer.grow(self._index, Growth(fresh, tokens))


def _end(choice: CompletionChoice) -> CompletionChoice:
    """The choice without its token ids, which pieces have told or nobody asks for."""
    return replace(choice, extra={name: value for name, value in choice.extra.items() if name != "token_ids"})


def sample_keys(seed: int, prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
    """The noise keys of the samples of a prompt: sample i has that of the first one under seed + i."""
    context = blake2b(",".join(map(str, prompt)).encode(), digest_size=16).digest()
    return tuple(noise_key(seed + number, context, 0, (), ()) for number in range(count))
