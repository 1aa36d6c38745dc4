"""Ending a sample by its text, decoded as it comes: at a stop, or at a match that can no longer change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from qpdsl.executor.text.detokenizer import Detokenizer, Tokens
from qpdsl.grammar.literals.matcher import matcher


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a sample stops: after its first `tokens` tokens and then `tail`, the kept text of the tokens cut in two.

    `tail` is empty where the stop ends with a token.
    """

    tokens: int
    tail: str


class TextSearch(Protocol):
    """A search over text that comes in pieces."""

    def push(self, text: str) -> bool:
        """Takes more of the text; True where further text can no longer change the match."""


@dataclass(frozen=True, slots=True)
class Stops:
    """What ends a sample: the first of `texts` that it has written, or text that one of `patterns` matches.

    It ends as soon as one of them is there, so a regex ends it at the shortest text that it matches.
    """

    texts: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()

    def search(self) -> StopSearch:
        """A search for them in the text of one sample."""
        return StopSearch(self)

    def without(self, step: str) -> str:
        """A step that one of them ended, without the text of what did."""
        ends = [text for text in self.texts if step.endswith(text)]
        ends += [found.text for pattern in self.patterns if (found := matcher(pattern).search(step)) is not None]
        return step.removesuffix(max(ends, key=len, default=""))


class StopSearch:
    """A search for stops over a text that comes in pieces."""

    __slots__ = ("_end", "_longest", "_states", "_stops")

    def __init__(self, stops: Stops) -> None:
        self._stops = stops
        self._longest = max(map(len, stops.texts), default=1)
        # The end of the text, as long as a stop string that begins in it could be.
        self._end = ""
        self._states = [matcher(pattern).start for pattern in stops.patterns]

    def push(self, piece: str) -> int | None:
        """How many characters of the piece come after the first stop; None where there is none in the text so far."""
        text = self._end + piece
        found = [(start, stop) for stop in self._stops.texts if (start := text.find(stop)) >= 0]
        ends = [len(text) - start - len(stop) for start, stop in found]
        for number, pattern in enumerate(self._stops.patterns):
            search, state = matcher(pattern), self._states[number]
            for index, character in enumerate(piece, 1):
                state = search.after(state, character)
                if state.matched:
                    ends.append(len(piece) - index)
                    break
            self._states[number] = state
        self._end = text[max(0, len(text) - self._longest + 1) :]
        return max(ends, default=None)


class StopWatch:
    """An engine `Watch` that ends a sample at the first of its stops; `cut` says where.

    With `stops` None nothing does. `emit` is called with each piece of the sample's text as soon as it is complete.
    With `until`, the sample ends as well where that search's match can no longer change, and nothing is cut. `pushed`
    counts tokens.
    """

    __slots__ = ("_before", "_decoded", "_emit", "_pending", "_piece", "_stops", "_until", "cut", "pushed")

    def __init__(
        self,
        detokenizer: Detokenizer,
        stops: Stops | None,
        emit: Callable[[str], None] | None = None,
        until: TextSearch | None = None,
    ) -> None:
        self._piece = detokenizer.piece
        self._stops = None if stops is None else stops.search()
        self._emit = emit
        self._until = until
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
        after = None if self._stops is None else self._stops.push(piece)
        if after is not None:
            self._cut_at(piece, after)
            return True
        if self._emit is not None:
            self._emit(piece)
        self._decoded += len(pending)
        self._before, self._pending = pending, ()
        return self._until is not None and self._until.push(piece)

    def _cut_at(self, piece: str, after: int) -> None:
        """Cuts where the stop ends, `after` characters before the end of the last piece."""
        kept = piece[: len(piece) - after]
        self.cut = Cut(self._decoded, kept) if after else Cut(self._decoded + len(self._pending), "")
        if self._emit is not None:
            self._emit(kept)
