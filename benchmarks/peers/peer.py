"""What a peer is: a system that the engine is measured beside. Each stands behind the same three calls.

This loads nothing but the standard library: peers run in environments that have little else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

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

    `seconds` and `processor_seconds` are without loading. A side that does not count candidates has zeros.
    """

    seconds: float
    processor_seconds: float
    answers: list[str]
    sampled: int
    candidates: int = 0
    duplicates: int = 0


class Searcher(Protocol):
    """A system that searches for the answers to problems, all of them side by side."""

    def search(self, problems: Sequence[str]) -> Found:
        """An answer each, as text. Every cache is empty when it begins."""


def no_watch(started: int, tokens: int) -> None:
    """An `OnStep` for runs that are timed as a whole."""
