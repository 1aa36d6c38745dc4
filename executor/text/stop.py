"""What ends a sample by its text, decoded as it comes: a stop string, or a match that can no longer change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from qpdsl.executor.text.detokenizer import Spelling, Tokens


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a sample stops: its first `tokens` tokens stay, then `tail`, the kept text of the token(s) cut in two.

    `tail` is empty where the stop string ends with a token.
    """

    tokens: int
    tail: str


class Search(Protocol):
    """A search over text that comes in pieces."""

    def push(self, text: str) -> bool:
        """Takes more of the text; True where what follows can no longer change what is found."""


class StopWatch:
    """An engine `Watch` that ends a sample at the first occurrence of a stop string; `cut` says where.

    `stop` None means that nothing does. `emit` is called with each piece of the sample's text as it is complete. With
    `until`, the sample ends as well where that search is settled, and there is nothing to cut. `pushed` counts tokens.
    """

    __slots__ = ("_before", "_decoded", "_emit", "_end", "_pending", "_piece", "_stop", "_until", "cut", "pushed")

    def __init__(
        self,
        spelling: Spelling,
        stop: str | None,
        emit: Callable[[str], None] | None = None,
        until: Search | None = None,
    ) -> None:
        self._piece = spelling.piece
        self._stop = stop
        self._emit = emit
        self._until = until
        # As much of the text's end as a stop string could begin in.
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
            found = text.find(stop)
            if found >= 0:
                self._stopped(piece, len(text) - found - len(stop))
                return True
            self._end = text[max(0, len(text) - len(stop) + 1) :]
        if self._emit is not None:
            self._emit(piece)
        self._decoded += len(pending)
        self._before, self._pending = pending, ()
        return self._until is not None and self._until.push(piece)

    def _stopped(self, piece: str, behind: int) -> None:
        """The stop string ends `behind` characters before the end of the last piece."""
        kept = piece[: len(piece) - behind]
        self.cut = Cut(self._decoded, kept) if behind else Cut(self._decoded + len(self._pending), "")
        if self._emit is not None:
            self._emit(kept)
