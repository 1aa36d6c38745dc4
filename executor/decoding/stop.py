"""Stop strings over incrementally decoded text."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a sample stops: its first `tokens` tokens stay, then `tail`, the kept text of the token(s) cut in two.

    `tail` is empty where the stop string ends with a token.
    """

    tokens: int
    tail: str


class StopWatch:
    """An engine `Watch` that ends a sample at the first occurrence of a stop string; `cut` says where."""

    def __init__(self, tokenizer: Tokenizer, stop: str) -> None:
        self._tokenizer = tokenizer
        self._stop = stop
        self._stream = DecodeStream(skip_special_tokens=True)
        self._text = ""
        self._seen = 0
        # Tokens whose text is complete: a token may end inside a character, whose text then comes with a later one.
        self._decoded = 0
        self.cut: Cut | None = None

    def push(self, token: int) -> bool:
        self._seen += 1
        piece = self._stream.step(self._tokenizer, token)
        if not piece:
            return False
        before = len(self._text)
        self._text += piece
        found = self._text.find(self._stop, max(0, before - len(self._stop) + 1))
        if found < 0:
            self._decoded = self._seen
            return False
        end = found + len(self._stop)
        if end == len(self._text):
            self.cut = Cut(self._seen, "")
        else:
            self.cut = Cut(self._decoded, self._text[before:end])
        return True


def cut_at_stop(tokenizer: Tokenizer, tokens: tuple[int, ...], stop: str) -> Cut | None:
    """The cut that a `StopWatch` finds in a whole sample, None where the stop string does not occur."""
    watch = StopWatch(tokenizer, stop)
    for token in tokens:
        if watch.push(token):
            return watch.cut
    return None
