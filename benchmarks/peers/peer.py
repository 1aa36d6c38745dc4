"""What a peer is: a system that the engine is measured beside. Each stands behind the same three calls.

This loads nothing but the standard library: peers run in environments that have little else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Tokens = list[tuple[int, ...]]
# Called after each step with how many rows have their first token, and how many tokens all rows have.
OnStep = Callable[[int, int], None]


@dataclass(frozen=True)
class Room:
    """What a peer must hold: `slots` sequences at once, each of `context` tokens at most; `threads` to compute with.

    `sharing` lets prompts reuse each other's KV where the peer can; without it every run prefills every prompt.
    """

    slots: int
    context: int
    threads: int = 1
    sharing: bool = False


class Peer(Protocol):
    """A system that continues token ids."""

    def run(self, prompts: Tokens, lengths: Sequence[int]) -> Tokens:
        """Greedy continuations, of exactly `lengths` tokens."""

    def fan_out(self, prompt: Sequence[int], samples: int, length: int) -> Tokens:
        """`samples` continuations of one prompt at temperature 1, each of exactly `length` tokens."""

    def close(self) -> None:
        """Gives back its threads and memory."""


class Stepwise(Protocol):
    """A system that tells after each step how far it is, so that prefill and decoding can be told apart."""

    def run(self, prompts: Tokens, lengths: Sequence[int], on_step: OnStep) -> Tokens:
        """Greedy continuations, of exactly `lengths` tokens."""


@dataclass(frozen=True)
class Found:
    """What a search came to: `sampled` tokens; of `candidates` that were scored, `duplicates` had a text seen before.

    `computed` tokens went through a model. `seconds` and `processor_seconds` are without loading. A side that does not
    count some of these has zeros.
    """

    seconds: float
    processor_seconds: float
    answers: list[str]
    sampled: int
    candidates: int = 0
    duplicates: int = 0
    computed: int = 0


class Searcher(Protocol):
    """A system that searches for the answers to problems, all of them side by side."""

    def search(self, problems: Sequence[str], own_draws: bool = False) -> Found:
        """An answer each, as text. Every cache is empty when it begins.

        Draws are those of qpdsl's engine with seed 0, unless the side is to have draws of its own.
        """


@dataclass(frozen=True)
class Written:
    """Greedy tokens of each row, its end included.

    Of our own side also how each row's came about (`StepCounts`), and the seconds that went to parts of the steps.
    """

    tokens: Tokens
    counts: list[dict[str, Any]] = field(default_factory=list)
    parts: dict[str, float] = field(default_factory=dict)


class Writer(Protocol):
    """A system that writes JSON held to a schema."""

    def write(
        self,
        prompts: Tokens,
        schemas: Sequence[str],
        limit: int,
        plan: Mapping[str, Any],
        on_first: Callable[[], None],
    ) -> Written:
        """All rows at once, each by its own schema, of at most `limit` tokens.

        `plan` says how, to a side that has several ways. `on_first` is called when every row has its first token.
        """


def no_watch(started: int, tokens: int) -> None:
    """An `OnStep` for runs that are timed as a whole."""
