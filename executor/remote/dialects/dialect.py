"""What a dialect is: how a sample is asked for, and how what comes back is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from typing import Literal as OneOf

from qpdsl.executor.remote.server.abilities import Abilities
from qpdsl.executor.requests.request import Constraint, ConstraintKind, SamplingParams


@dataclass(frozen=True, slots=True)
class Messages:
    """Chat turns (role, text), and `begun`, the text with which the assistant's answer begins: often none."""

    turns: tuple[tuple[str, str], ...]
    begun: str = ""


# Token ids and plain text are continued, messages are answered.
Prompt = tuple[int, ...] | str | Messages


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """One sample of a model.

    `max_tokens`: None for as many as there is room for. `stops`: texts that the server is to stop after; what it wrote
    is to end with the text that stopped it. `abilities` are those of the model at its server.
    """

    model: str
    prompt: Prompt
    sampling: SamplingParams
    max_tokens: int | None
    seed: int
    abilities: Abilities
    stops: tuple[str, ...] = ()
    constraint: Constraint | None = None


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
    `sampled_tokens` are the server's counts, None where it has not said.
    """

    text: str = ""
    ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] = ()
    sizes: tuple[int, ...] = ()
    finish: OneOf["stop", "length"] | None = None
    named: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    sampled_tokens: int | None = None


def joined(pieces: Iterable[CompletionChunk]) -> CompletionChunk:
    """The answer that came in these pieces."""
    parts = list(pieces)
    written = [piece for piece in parts if piece.text or piece.ids]
    told = all(piece.ids is not None for piece in written) and bool(written)
    return CompletionChunk(
        "".join(piece.text for piece in parts),
        tuple(id for piece in written for id in piece.ids or ()) if told else None,
        tuple(logprob for piece in parts for logprob in piece.logprobs),
        tuple(size for piece in parts for size in piece.sizes),
        *(_last(parts, name) for name in ("finish", "named", "prompt_tokens", "cached_tokens", "sampled_tokens")),
    )


def _last(parts: list[CompletionChunk], name: str) -> Any:
    return next((value for piece in reversed(parts) if (value := getattr(piece, name)) is not None), None)


class Dialect(Protocol):
    """Writes requests for a kind of server and reads its answers. It has no state."""

    @property
    def constraints(self) -> frozenset[ConstraintKind]:
        """The kinds of constraint that it has a field for; whether a server heeds it is for a probe to see."""

    def write(self, request: SampleRequest) -> HTTPRequest:
        """The request for one sample. Raises ValueError, in words, for what it has no field for."""

    def streamed(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The same request, with its answer as it is written."""

    def read(self, answer: Any) -> CompletionChunk:
        """What an answer, or an event of a stream, says. Raises Refused and Unreachable."""

    def counts(self, answer: Any) -> CompletionChunk:
        """The server's counts of tokens alone, also of an answer that `read` raises for."""
