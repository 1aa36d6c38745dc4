"""What stands behind a name in `/v1/models`: how the HTTP side asks it, and what it says.

The HTTP side (`http/routes.py`) knows requests, answers, streams and limits. A `ServedModel` knows which fields of a
request it honours and how an answer comes about: `served_program.py` runs a program, `passthrough_model.py` asks a
model itself.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from qpdsl.serve.completion_request import CompletionRequest

# Why an answer ended, as OpenAI names it.
FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class Delta:
    """The next piece of the text of choice `index` as it is generated.

    `logprobs` are in the form of the endpoint, None where they were not asked for. `extra`: further fields of the
    choice in this chunk, such as `token_ids`. `usage`: what the request has cost up to here, for clients that ask for
    that in every chunk. `thought` is the next piece of what the model thought before the text.
    """

    index: int
    text: str
    logprobs: Mapping[str, Any] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    usage: TokenUsage | None = None
    thought: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a request has come, for people: a comment in the stream, where the client asked for it."""

    text: str


@dataclass(frozen=True, slots=True)
class CompletionChoice:
    """One whole choice of an answer; fields as in `Delta`. `thought` is None where the model thought nothing.

    `calls` are those of tools, as OpenAI's API has them; the text of a choice that ends in one stands before it.
    """

    text: str
    finish_reason: FinishReason = "stop"
    logprobs: Mapping[str, Any] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    thought: str | None = None
    calls: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """The tokens of a request: of all prompts, of them those found in the cache, and all that were sampled.

    `answer_tokens` of the sampled ones are those of the answers that were given back; None where all are.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    answer_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class CompletionResponse:
    """The whole answer: its choices by their index, what it cost, and fields to stand beside `choices`."""

    choices: tuple[CompletionChoice, ...]
    usage: TokenUsage
    fingerprint: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


def no_pause() -> float:
    """For streams that tell everything at once."""
    return 0.0


class PreparedRequest(Protocol):
    """A request that was read and found good, not begun yet. One of the two is called, once.

    `seed` is that of its samples: with it in the request, the answer is the same each time. Where the task that awaits
    is cancelled, everything that was begun is given up and what it held is free.
    """

    @property
    def seed(self) -> int: ...

    async def answer(self) -> CompletionResponse:
        """Raises Refusal where there is no answer."""
        ...

    def stream(
        self, pause: Callable[[], float] = no_pause
    ) -> AsyncGenerator[Delta | Progress | CompletionResponse, None]:
        """Pieces as they come, then the whole answer, last and once. Raises Refusal where there is none.

        The pieces of a choice, one behind the other, are its text; what no piece has said yet follows from the answer.
        After some pieces it gathers what comes for `pause()` seconds before it tells that, in one piece of each choice,
        but it does not wait once the answer is there.
        """
        ...


class ServedModel(Protocol):
    """A program or a bare model, by the name that clients give as `model`."""

    @property
    def name(self) -> str: ...

    @property
    def card(self) -> Mapping[str, Any]:
        """What `/v1/models` says of it besides `id`, `object`, `created` and `owned_by`."""
        ...

    def read(self, request: CompletionRequest) -> PreparedRequest:
        """What the request asks for. Raises Refusal for a field that is not honoured, and for an unknown one."""
        ...
