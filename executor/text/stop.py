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

    `tail` is empty where the stop ends with a token. `tokens` is below 0 where the first of those that are cut is one
    of an earlier sample's, which ended inside a letter.
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

    With `stops` None nothing does. `emit` is called with each piece of the sample's text as soon as it cannot change.
    With `until`, the sample ends as well where that search's match can no longer change, and nothing is cut. `earlier`
    are tokens before the sample whose text goes on in it. With `leading` white space before its first letter is no part
    of the text. `pushed` counts tokens.
    """

    __slots__ = ("_emit", "_leading", "_stops", "_text", "_until", "cut", "pushed")

    def __init__(
        self,
        detokenizer: Detokenizer,
        stops: Stops | None,
        emit: Callable[[str], None] | None = None,
        until: TextSearch | None = None,
        earlier: Tokens = (),
        *,
        leading: bool = False,
    ) -> None:
        self._leading = leading
        self._text = detokenizer.begin(earlier)
        self._stops = None if stops is None else stops.search()
        self._emit = emit
        self._until = until
        self.cut: Cut | None = None
        self.pushed = 0

    def push(self, token: int) -> bool:
        self.pushed += 1
        piece = self._text.push(token)
        if self._leading:
            piece = piece.lstrip()
        if not piece:
            return False
        self._leading = False
        after = None if self._stops is None else self._stops.push(piece)
        if after is not None:
            self._cut_at(piece, after)
            return True
        if self._emit is not None:
            self._emit(piece)
        return self._until is not None and self._until.push(piece)

    def end(self) -> None:
        """Nothing follows: what stands for a letter that is only begun is emitted."""
        if self._emit is not None and self._text.tail:
            self._emit(self._text.tail)

    def _cut_at(self, piece: str, after: int) -> None:
        """Cuts where the stop ends, `after` characters before the end of the last piece."""
        text = self._text
        within = after or not text.whole
        self.cut = Cut(text.start, text.text[: len(text.text) - after]) if within else Cut(self.pushed, "")
        if self._emit is not None:
            self._emit(piece[: len(piece) - after])
