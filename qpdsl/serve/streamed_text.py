"""The text of answers while it grows: gathered until it is sent, and cut where the client wants it to end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from qpdsl.serve.served_model import FinishReason, Progress

# So many tokens at the end of a text may become others where it goes on.
_UNSURE = 4


@dataclass(slots=True)
class Growth:
    """What a choice has grown by: text, the tokens that it is made of or begins in, and the thought before it.

    `thinking` of the tokens are the thought's.
    """

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    thought: str = ""
    thinking: int = 0

    def add(self, more: Growth) -> None:
        self.text += more.text
        self.tokens += more.tokens
        self.thought += more.thought
        self.thinking += more.thinking


class PendingUpdates:
    """What happened since it was last taken: reports of progress, and the growth of each choice, in this order."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._progress: list[Progress] = []
        self._grown: dict[int, Growth] = {}
        # Until when what comes is gathered, on the loop's clock, and what ends that then.
        self._gathers_until = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def report(self, progress: Progress) -> None:
        self._progress.append(progress)
        self._tell()

    def grow(self, index: int, more: Growth) -> None:
        """Takes what a choice has grown by, and keeps `more` itself."""
        if (grown := self._grown.get(index)) is None:
            self._grown[index] = more
        else:
            grown.add(more)
        self._tell()

    async def batches(
        self, work: asyncio.Future[Any], pause: Callable[[], float]
    ) -> AsyncGenerator[tuple[list[Progress], dict[int, Growth]], None]:
        """All that has come each time, until `work` is done. `pause()` seconds pass between two batches."""

        def ended(done: asyncio.Future[Any]) -> None:
            if not done.cancelled():
                # Where nobody reads any further, nobody asks what it was.
                done.exception()
            self._wake()

        work.add_done_callback(ended)
        clock = asyncio.get_running_loop().time
        while not work.done():
            await self._changed.wait()
            self._changed.clear()
            taken = self._progress, self._grown
            self._progress, self._grown = [], {}
            yield taken
            if (seconds := pause()) > 0:
                self._gathers_until = clock() + seconds

    def _tell(self) -> None:
        """Wakes who waits for batches, unless what comes is still gathered."""
        if self._timer is None and not self._changed.is_set():
            loop = asyncio.get_running_loop()
            if self._gathers_until > loop.time():
                self._timer = loop.call_at(self._gathers_until, self._wake)
            else:
                self._changed.set()

    def _wake(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._changed.set()


def held_back(text: str, stops: Sequence[str]) -> int:
    """How many characters at the end are a stop text, or could be the beginning of one."""
    if not stops:
        return 0
    longest = max(map(len, stops))
    lengths = range(min(longest, len(text)), 0, -1)
    return next((length for length in lengths if any(stop.startswith(text[-length:]) for stop in stops)), 0)


class StrippedText:
    """A text that comes in pieces, without the white space around it."""

    def __init__(self) -> None:
        self._rest = ""
        self._begun = False

    def feed(self, piece: str) -> str:
        """What may be shown now that one more piece is known."""
        text = self._rest + piece if self._begun else piece.lstrip()
        shown = text.rstrip()
        self._rest, self._begun = text[len(shown) :], self._begun or bool(shown)
        return shown


class StopTruncator:
    """Cuts one answer, also while it comes in pieces.

    It ends before the first of `stops` in it, and has at most `bound` tokens: `ends` says of a text how many of its
    characters are whole after each of its tokens. Neither changes what the program does: it has written the answer
    before it is cut.
    """

    def __init__(self, stops: Sequence[str], bound: int | None, ends: Callable[[str], Sequence[int]]) -> None:
        self._stops = stops
        self._bound = bound
        self._ends = ends
        self._text = ""
        self._shown = 0
        self._ended = False

    def feed(self, piece: str) -> str:
        """What may be shown now that one more piece is known.

        That is all but what a stop text could begin with, and tokens that more text could part otherwise.
        """
        if not self._stops and self._bound is None:
            return piece
        if self._ended:
            return ""
        self._text += piece
        cut, self._ended = self._stopped(self._text)
        if self._ended:
            cut, _ = self._bounded(cut)
        else:
            cut, self._ended = self._sure(cut[: len(cut) - held_back(cut, self._stops)])
        fresh = cut[self._shown :]
        self._shown = max(self._shown, len(cut))
        return fresh

    def whole(self, text: str, finish: FinishReason = "stop") -> tuple[str, FinishReason]:
        """The whole answer as it is given back, and why it ended: `finish` where nothing was cut."""
        cut, stopped = self._stopped(text)
        cut, bounded = self._bounded(cut)
        shown = self._text[: self._shown]
        # More text can part the tokens otherwise; what was shown stays.
        cut = cut if cut.startswith(shown) else shown
        return cut, "length" if bounded else "stop" if stopped else finish

    def _stopped(self, text: str) -> tuple[str, bool]:
        places = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        return (text[: min(places)], True) if places else (text, False)

    def _sure(self, text: str) -> tuple[str, bool]:
        """What the bound leaves of a text whatever comes after it, and whether it has been reached."""
        if self._bound is None or len(text.encode()) < self._bound:
            return text, False
        ends = self._ends(text)[:-_UNSURE]
        if len(ends) > self._bound:
            return text[: ends[self._bound - 1]], True
        return text[: ends[-1]] if ends else "", False

    def _bounded(self, text: str) -> tuple[str, bool]:
        # A token has a byte at least, but for the space that some tokenizers put before a text.
        if self._bound is None or len(text.encode()) < self._bound:
            return text, False
        ends = self._ends(text)
        return (text[: ends[self._bound - 1]], True) if len(ends) > self._bound else (text, False)
