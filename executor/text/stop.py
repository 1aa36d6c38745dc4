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

    It ends as soon as one of them is there, so a regex ends it at the shortest text that it matches. With `drop` what
    matched is none of the sample's text. None counts that ends within the sample's first `least` tokens.
    """

    texts: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    drop: bool = False
    least: int = 0

    def search(self) -> StopSearch:
        """A search for them in the text of one sample."""
        return StopSearch(self)

    def without(self, step: str) -> str:
        """A step that one of them ended, without the text of what did."""
        return step if self.drop else self.before(step)

    def before(self, text: str) -> str:
        """Of a text at the end of which one of them stands, what comes before it."""
        ends = [stop for stop in self.texts if text.endswith(stop)]
        ends += [found.text for pattern in self.patterns if (found := matcher(pattern).search(text)) is not None]
        return text.removesuffix(max(ends, key=len, default=""))

    def begun(self, text: str) -> int:
        """How many characters at the end of a text may be the beginning of one of them; a regex may begin anywhere."""
        if self.patterns:
            return len(text)
        sizes = (size for stop in self.texts for size in range(1, len(stop)) if text.endswith(stop[:size]))
        return max(sizes, default=0)


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
    of the text. `pushed` counts tokens. Text that a stop may still drop is held back.
    """

    __slots__ = (
        *("_all", "_emit", "_ignored", "_leading", "_search", "_shown", "_stops", "_text", "_until", "_wholes"),
        *("cut", "pushed"),
    )

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
        self._stops = stops
        self._search = None if stops is None else stops.search()
        self._emit = emit
        self._until = until
        self.cut: Cut | None = None
        self.pushed = 0
        # Where what stops is dropped: the text, how much of it was emitted and up to where a stop came too early, and
        # after how many tokens and characters a letter ends.
        self._all, self._shown, self._ignored = "", 0, 0
        self._wholes = [(0, 0)]

    def push(self, token: int) -> bool:
        self.pushed += 1
        piece = self._text.push(token)
        if self._leading:
            piece = piece.lstrip()
        if not piece:
            return False
        self._leading = False
        after = None if self._search is None else self._search.push(piece)
        if after is not None and self._stops is not None:
            if self.pushed > self._stops.least:
                self._cut_at(piece, after)
                return True
            self._search, self._ignored = self._stops.search(), len(self._all) + len(piece)
        self._show(piece)
        return self._until is not None and self._until.push(piece)

    def end(self) -> None:
        """Nothing follows: what was held back is emitted, and what stands for a letter that is only begun."""
        self.flush()
        if self._emit is not None and self._text.tail:
            self._emit(self._text.tail)

    def flush(self) -> None:
        """No stop follows: what was held back is emitted."""
        self._emit_to(len(self._all))

    def _show(self, piece: str) -> None:
        """Emits what cannot be dropped any more."""
        if self._stops is None or not self._stops.drop:
            if self._emit is not None:
                self._emit(piece)
            return
        self._all += piece
        if self._text.whole:
            self._wholes.append((self.pushed, len(self._all)))
        self._emit_to(len(self._all) - self._stops.begun(self._all))

    def _emit_to(self, end: int) -> None:
        if self._emit is not None and end > self._shown:
            self._emit(self._all[self._shown : end])
            self._shown = end

    def _cut_at(self, piece: str, after: int) -> None:
        """Cuts where the stop ends, `after` characters before the end of the last piece, or before it."""
        text, stops = self._text, self._stops
        if stops is not None and stops.drop:
            whole = self._all + piece
            early, late = whole[: self._ignored], whole[self._ignored : len(whole) - after]
            kept = early + stops.before(late)
            tokens, characters = max(one for one in self._wholes if one[1] <= len(kept))
            self.cut = Cut(tokens, kept[characters:])
            self._all = kept
            self._emit_to(len(kept))
            return
        within = after or not text.whole
        self.cut = Cut(text.start, text.text[: len(text.text) - after]) if within else Cut(self.pushed, "")
        if self._emit is not None:
            self._emit(piece[: len(piece) - after])
