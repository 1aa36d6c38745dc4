"""Ending a sample by its text, decoded as it comes: at a stop string, or at a match that can no longer change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from qpdsl.executor.text.detokenizer import Detokenizer, Tokens


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a sample stops: after its first `tokens` tokens and then `tail`, the kept text of the tokens cut in two.

    `tail` is empty where the stop string ends with a token.
    """

    tokens: int
    tail: str


class TextSearch(Protocol):
    """A search over text that comes in pieces."""

    def push(self, text: str) -> bool:
        """Takes more of the text; True where further text can no longer change the match."""


class StopWatch:
    """An engine `Watch` that ends a sample at the first occurrence of a stop string; `cut` says where.

    With `stop` None no string does. `emit` is called with each piece of the sample's text as soon as it is complete.
    With `until`, the sample ends as well where that search's match can no longer change, and nothing is cut. `pushed`
    counts tokens.
    """

    __slots__ = ("_before", "_decoded", "_emit", "_end", "_pending", "_piece", "_stop", "_until", "cut", "pushed")

    def __init__(
        self,
        detokenizer: Detokenizer,
        stop: str | None,
        emit: Callable[[str], None] | None = None,
        until: TextSearch | None = None,
    ) -> None:
        self._piece = detokenizer.piece
        self._stop = stop
        self._emit = emit
        self._until = until
        # The end of the text, as long as a stop string that begins in it could be.
        self._end = ""
        self._decoded = 0
        self._before: Tokens = ()
        self._pending: Tokens = ()
        self.cut: Cut | None = None
        self.pushed = 0

    def push(self, token: int) -> bool:
        self.pushed += 1
        pending = self._pending = (*self._pending, token)
        piece = self._piece(self._before, pending)
        if not piece:
            return False
        stop = self._stop
        if stop is not None:
            text = self._end + piece
            start = text.find(stop)
            if start >= 0:
                self._cut_at(piece, len(text) - start - len(stop))
                return True
            self._end = text[max(0, len(text) - len(stop) + 1) :]
        if self._emit is not None:
            self._emit(piece)
        self._decoded += len(pending)
        self._before, self._pending = pending, ()
        return self._until is not None and self._until.push(piece)

    def _cut_at(self, piece: str, after: int) -> None:
        """Cuts where the stop string ends, `after` characters before the end of the last piece."""
        kept = piece[: len(piece) - after]
        self.cut = Cut(self._decoded, kept) if after else Cut(self._decoded + len(self._pending), "")
        if self._emit is not None:
            self._emit(kept)
