"""Where a client has an answer end: at the first stop text, and after so many tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qpdsl.serve.served_model import FinishReason

# So many tokens at the end of a text may become others where it goes on.
_UNSURE = 4


def held_back(text: str, stops: Sequence[str]) -> int:
    """How many characters at the end are a stop text, or could be the beginning of one."""
    longest = max(map(len, stops), default=0)
    lengths = range(min(longest, len(text)), 0, -1)
    return next((length for length in lengths if any(stop.startswith(text[-length:]) for stop in stops)), 0)


class AnswerCut:
    """Cuts one answer, also while it comes in pieces.

    It ends before the first of `stops` in it, and has at most `bound` tokens, as `encode` counts them. Neither changes
    what the program does: it has written the answer before it is cut.
    """

    def __init__(
        self,
        stops: Sequence[str],
        bound: int | None,
        encode: Callable[[str], Sequence[int]],
        decode: Callable[[Sequence[int]], str],
    ) -> None:
        self._stops = stops
        self._bound = bound
        self._encode = encode
        self._decode = decode
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
        if self._bound is None or len(text.encode()) <= self._bound:
            return text, False
        ids = self._encode(text)[:-_UNSURE]
        cut = self._decode(ids[: self._bound])
        if len(ids) > self._bound:
            return cut, True
        # Half of a character is none yet.
        return (cut if text.startswith(cut) else ""), False

    def _bounded(self, text: str) -> tuple[str, bool]:
        # A token has a byte at least.
        if self._bound is None or len(text.encode()) <= self._bound:
            return text, False
        ids = self._encode(text)
        return (self._decode(ids[: self._bound]), True) if len(ids) > self._bound else (text, False)
