"""One request on its way through the server, and its answer as OpenAI's API writes it, in bytes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from qpdsl.executor.events.events import RequestReached
from qpdsl.executor.requests.errors import BudgetReached, EngineError, RequestRefused, ServerGone
from qpdsl.serve.completion_request import CompletionRequest, Refusal
from qpdsl.serve.conversation import THOUGHTS
from qpdsl.serve.http.access_log import RequestRecord
from qpdsl.serve.http.admission_control import AdmissionControl
from qpdsl.serve.http.server_figures import Outcome, ServerFigures
from qpdsl.serve.served_model import CompletionChoice, CompletionResponse, Delta, PreparedRequest, Progress, TokenUsage

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
FAULT = "internal server error; see the server's log"
# When to ask again for a model whose server was given up.
_SECONDS_TO_RETURN = 30


@dataclass
class Exchange:
    """One request on its way: let in, timed, answered or not, and counted.

    `report` is called with internal errors, and `reached` each time that the request is a part further.
    """

    admission: AdmissionControl
    figures: ServerFigures
    report: Callable[[Exception], None]
    reached: Callable[[RequestReached], None]
    record: RequestRecord
    asked: CompletionRequest
    prepared: PreparedRequest
    entered: float = 0.0

    def __post_init__(self) -> None:
        self.replies = Replies(self.asked, self.record.model)

    async def whole(self) -> bytes:
        """The body of the answer. Raises Refusal."""
        await self.enter()
        with self._counted():
            async with self.admission.timed():
                answer = await self.prepared.answer()
            self._answered(answer)
            return self.replies.whole(answer)

    async def enter(self) -> bool:
        """Waits until the request may run. Raises Refusal where it may not."""
        self._reach("waiting")
        try:
            await self.admission.enter(self.asked.client, self.record.key)
        except Refusal:
            self._end("rejected")
            raise
        except asyncio.CancelledError:
            self._end("cancelled")
            raise
        self.entered = time.monotonic()
        self._reach("running")
        return True

    async def chunks(self) -> AsyncIterator[bytes]:
        """The events of the stream of a request that has entered, up to the last one; an error is one of them."""
        try:
            with self._counted():
                async with self.admission.timed(), contextlib.aclosing(self._events()) as chunks:
                    async for chunk in chunks:
                        yield chunk
        except Refusal as refusal:
            self.record.failure = refusal.status
            yield event(refusal.body()) + DONE

    async def _events(self) -> AsyncGenerator[bytes, None]:
        begun = False
        async with contextlib.aclosing(self.prepared.stream(self.admission.pause)) as updates:
            async for update in updates:
                if isinstance(update, Progress):
                    yield comment(f"progress {update.text}")
                    continue
                if not begun:
                    begun = True
                    self.figures.first(self.record.model, time.monotonic() - self.record.arrived)
                if isinstance(update, Delta):
                    yield self.replies.delta(update)
                else:
                    self._answered(update)
                    yield self.replies.end(update)

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
            raise self.admission.late() from None
        except (asyncio.CancelledError, GeneratorExit):
            outcome = "cancelled"
            raise
        except BudgetReached as error:
            outcome = "failed"
            raise Refusal(str(error), status=429, code="insufficient_quota") from error
        except ServerGone as error:
            outcome = "failed"
            raise Refusal(str(error), status=503, code="server_gone", retry_after=_SECONDS_TO_RETURN) from error
        except RequestRefused as error:
            outcome = "refused"
            raise Refusal(str(error), error.param) from error
        except EngineError as error:
            outcome = "failed"
            raise Refusal(str(error), status=422, code="model_failed") from error
        except Exception as error:
            self.report(error)
            raise Refusal(FAULT, status=500, code="internal") from error
        finally:
            self.admission.leave(time.monotonic() - self.entered, self.record.key)
            self._end(outcome)

    def _answered(self, answer: CompletionResponse) -> None:
        self.record.usage = answer.usage
        self.figures.answered(self.record.model, len(answer.choices), answer.usage, self.record.key)

    def _end(self, outcome: Outcome) -> None:
        record = self.record
        self.figures.ended(record.model, outcome, time.monotonic() - record.arrived, record.key)
        self._reach(outcome)

    def _reach(self, status: str) -> None:
        now, record = time.monotonic(), self.record
        self.reached(
            RequestReached(
                at=now,
                request=self.asked.id,
                program=record.model,
                status=status,
                seconds=now - record.arrived,
                prompt_tokens=0 if record.usage is None else record.usage.prompt_tokens,
                sampled_tokens=0 if record.usage is None else record.usage.completion_tokens,
            )
        )


class Replies:
    """Writes the answer to one request: whole, or as the chunks of a stream.

    With `include_usage` a stream ends with a chunk of what the request cost, and with `continuous_usage_stats` each
    chunk has it so far.
    """

    def __init__(self, request: CompletionRequest, model: str) -> None:
        options = request.stream_options
        usage = bool(options.get("include_usage"))
        self._chat = request.endpoint == "chat"
        self._usage = usage
        self._always = bool(options.get("continuous_usage_stats"))
        kind = "chat.completion" if self._chat else "text_completion"
        self._head: dict[str, Any] = {
            "id": request.id,
            "object": kind,
            "created": int(time.time()),
            "model": model,
        }
        # All chunks of a stream begin alike.
        self._lead = self._lead_of({})
        self._tail = '], "usage": null}\n\n' if usage else "]}\n\n"
        # What was sent of the thought and of the text of each choice.
        self._begun: dict[int, tuple[str, str]] = {}

    def whole(self, answer: CompletionResponse) -> bytes:
        """The body of an answer that is not streamed."""
        choices = [self._choice(index, chosen) for index, chosen in enumerate(answer.choices)]
        body = {**self._head, "choices": choices, "usage": usage_of(answer.usage)}
        if answer.fingerprint is not None:
            body["system_fingerprint"] = answer.fingerprint
        return _json({**body, **answer.extra}).encode()

    def delta(self, delta: Delta) -> bytes:
        """The chunk of a delta; before the first one of a choice, that of the role."""
        lead = "" if delta.index in self._begun else self._role(delta.index)
        begun = self._begun.get(delta.index, ("", ""))
        self._begun[delta.index] = begun[0] + delta.thought, begun[1] + delta.text
        tail = None
        if self._always and delta.usage is not None:
            tail = f'], "usage": {_json(usage_of(delta.usage))}}}\n\n'
        said = self._said(delta.thought, delta.text)
        return (lead + self._chunk(delta.index, said, delta.logprobs, None, delta.extra, tail=tail)).encode()

    def end(self, answer: CompletionResponse) -> bytes:
        """What no delta has had yet, why each choice ended, the usage where it was asked for, and the end."""
        parts = []
        lead = self._lead_of({} if answer.fingerprint is None else {"system_fingerprint": answer.fingerprint})
        for index, chosen in enumerate(answer.choices):
            shown = self._begun.get(index)
            if shown is None:
                parts.append(self._role(index, spoken=not chosen.calls or bool(chosen.text)))
            thought, text = shown or ("", "")
            thought = "" if text else (chosen.thought or "")[len(thought) :]
            rest = chosen.text[len(text) :]
            logprobs = chosen.logprobs if shown is None else None
            if rest or thought:
                parts.append(self._chunk(index, self._said(thought, rest), logprobs, None, {}))
                logprobs = None
            if chosen.calls:
                parts.append(self._chunk(index, _called(chosen), logprobs, None, {}))
            parts.append(self._chunk(index, self._said("", None), None, chosen.finish_reason, chosen.extra, lead))
        if self._usage:
            parts.append(f'{lead}], "usage": {_json(usage_of(answer.usage))}}}\n\n')
        return "".join(parts).encode() + DONE

    def _choice(self, index: int, chosen: CompletionChoice) -> dict[str, Any]:
        said: dict[str, Any] = {"text": chosen.text}
        if self._chat:
            thought = {} if chosen.thought is None else dict.fromkeys(THOUGHTS, chosen.thought)
            called = {"tool_calls": list(chosen.calls)} if chosen.calls else {}
            content = (chosen.text or None) if chosen.calls else chosen.text
            said = {"message": {"role": "assistant", "content": content, "refusal": None, **thought, **called}}
        end = {"logprobs": chosen.logprobs, "finish_reason": chosen.finish_reason}
        return {"index": index, **said, **end, **chosen.extra}

    def _role(self, index: int, *, spoken: bool = True) -> str:
        """The chunk that begins a choice; where it is not `spoken`, nothing but a call comes."""
        if not self._chat:
            return ""
        delta = f'{{"role": "assistant", "content": {_json("" if spoken else None)}}}'
        choice = f'{{"index": {index}, "delta": {delta}, "logprobs": null, "finish_reason": null}}'
        return f"{self._lead}{choice}{self._tail}"

    def _chunk(
        self,
        index: int,
        said: str,
        logprobs: Mapping[str, Any] | None,
        finish: str | None,
        extra: Mapping[str, Any],
        lead: str | None = None,
        tail: str | None = None,
    ) -> str:
        probabilities = "null" if logprobs is None else _json(logprobs)
        ended = "null" if finish is None else f'"{finish}"'
        more = ", " + _json(extra)[1:-1] if extra else ""
        choice = f'{{"index": {index}, {said}, "logprobs": {probabilities}, "finish_reason": {ended}{more}}}'
        return f"{lead or self._lead}{choice}{tail or self._tail}"

    def _said(self, thought: str, text: str | None) -> str:
        """The part of a chunk that has the next piece of a thought and of the text behind it; a text has no thought."""
        if not self._chat:
            return f'"text": {json.dumps(text or "")}'
        pieces = dict.fromkeys(THOUGHTS, thought) if thought else {}
        return f'"delta": {_json(pieces | ({} if text is None or (thought and not text) else {"content": text}))}'

    def _lead_of(self, more: Mapping[str, Any]) -> str:
        kind = "chat.completion.chunk" if self._chat else self._head["object"]
        return "data: " + _json({**self._head, "object": kind, **more})[:-1] + ', "choices": ['


def _called(chosen: CompletionChoice) -> str:
    """The part of a chunk that has the calls of a choice, each whole."""
    return f'"delta": {_json({"tool_calls": [{"index": at, **call} for at, call in enumerate(chosen.calls)]})}'


def usage_of(usage: TokenUsage) -> dict[str, Any]:
    """The tokens of a request. Those that were sampled and are not in an answer count as reasoning."""
    answer = usage.completion_tokens if usage.answer_tokens is None else usage.answer_tokens
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {
            "reasoning_tokens": usage.completion_tokens - answer,
            "answer_tokens": answer,
        },
    }


def event(body: Mapping[str, Any]) -> bytes:
    """A JSON object as an event of a stream."""
    return f"data: {_json(body)}\n\n".encode()


def comment(text: str) -> bytes:
    """A comment in a stream, which clients skip."""
    return f": {' '.join(text.split())}\n\n".encode()


# Made once: `json.dumps` makes one for each value that is written in any but the usual way.
_json = json.JSONEncoder(allow_nan=False).encode
