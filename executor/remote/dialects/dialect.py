"""What dialects write and read: requests for samples, questions whose answers are numbers, and what is answered."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from qpdsl.executor.remote.server.server_capabilities import ServerCapabilities
from qpdsl.executor.requests.request import Calls, SampleConstraint, SamplingParams


class Message(NamedTuple):
    """One turn of a chat, with what the assistant thought before it, and its calls of tools: JSON, as text."""

    role: str
    text: str
    thought: str = ""
    calls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Messages:
    """Chat turns, and `begun`, the assistant's turn with which its answer begins: often none.

    `think` is how the model is to think, one of the switches of `ServerThinking`, or empty where nothing is said.
    `tools` are those that the model is shown, as a JSON list of functions, or empty.
    """

    turns: tuple[Message, ...]
    begun: Message | None = None
    think: str = ""
    tools: str = ""


# Token ids and plain text are continued, messages are answered.
Prompt = tuple[int, ...] | str | Messages


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """One sample of a model.

    `max_tokens`: None for as many as there is room for. `stops`: texts that the server is to stop after; what it wrote
    is to end with the text that stopped it. `thought`: tokens that the thought may take, None where that is not
    bounded. `capabilities` are those of the model at its server.
    """

    model: str
    prompt: Prompt
    sampling: SamplingParams
    max_tokens: int | None
    seed: int
    capabilities: ServerCapabilities
    stops: tuple[str, ...] = ()
    constraint: SampleConstraint | None = None
    thought: int | None = None


@dataclass(frozen=True, slots=True)
class HTTPRequest:
    """A POST: `path` below the URL of the model's server, and its body, without the fields that ask for a stream."""

    path: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CompletionChunk:
    """What was written, or the next piece of it.

    `ids` are the tokens' own, with the model's end among them where the server tells it; None where it tells none.
    `logprobs`, one a token, empty where they are not told; `sizes` says how many bytes of text each is. `finish`: why
    it ended, None where it goes on; `named` says which of the stops did it. `prompt_tokens`, `cached_tokens` and
    `sampled_tokens` are the server's counts, None where it has not said. `thought` is what the model thought before the
    text, and `thought_tokens` how many of the sampled tokens that took, None where the server has not said. `calls` of
    tools follow the text, each as the JSON text of its `name` and its `arguments`.
    """

    text: str = ""
    ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] = ()
    sizes: tuple[int, ...] = ()
    finish: Literal["stop", "length"] | None = None
    named: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    sampled_tokens: int | None = None
    thought: str = ""
    thought_tokens: int | None = None
    calls: tuple[str, ...] = ()

    @property
    def thinks(self) -> bool:
        return bool(self.thought or self.thought_tokens)


def joined(pieces: Iterable[CompletionChunk]) -> CompletionChunk:
    """The answer that came in these pieces."""
    parts = list(pieces)
    written = [piece for piece in parts if piece.text or piece.ids]
    told = all(piece.ids is not None for piece in written) and bool(written)
    last = ("finish", "named", "prompt_tokens", "cached_tokens", "sampled_tokens", "thought_tokens")
    return CompletionChunk(
        text="".join(piece.text for piece in parts),
        ids=tuple(id for piece in written for id in piece.ids or ()) if told else None,
        logprobs=tuple(logprob for piece in parts for logprob in piece.logprobs),
        sizes=tuple(size for piece in parts for size in piece.sizes),
        thought="".join(piece.thought for piece in parts),
        calls=tuple(call for piece in parts for call in piece.calls),
        **{name: _last(parts, name) for name in last},
    )


def _last(parts: list[CompletionChunk], name: str) -> Any:
    return next((value for piece in reversed(parts) if (value := getattr(piece, name)) is not None), None)


Tokens = tuple[int, ...]
# After so many tokens, these ids.
Want = tuple[int, Tokens]
# A row for each place that was asked about; None for a number that the answer does not have.
Values = tuple[tuple[float | None, ...], ...]


class BadAnswer(Exception):
    """An answer without what was asked for; the message says what is wrong with it, to be read after "the server"."""


@dataclass(frozen=True, slots=True)
class Question:
    """A POST of `body` to `path` whose answer is numbers, which `read` finds in its JSON. `read` raises BadAnswer."""

    path: str
    body: Mapping[str, Any]
    read: Callable[[Any], Values]


# Sends a question, or finds its cached answer. Raises EngineError.
Send = Callable[[Question], Awaitable[tuple[Values, Calls]]]


def field(answer: Any, *names: str | int) -> Any:
    """What an answer has under these names, one inside the other. Raises BadAnswer where there is nothing."""
    for name in names:
        try:
            answer = answer[name]
        except (KeyError, IndexError, TypeError):
            shown = ".".join(map(str, names))
            raise BadAnswer(f"returned no `{shown}`") from None
    return answer


def number(value: Any) -> float:
    """A finite number of an answer. Raises BadAnswer."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadAnswer(f"returned {str(value)[:40]!r} instead of a number")
    return float(value)
