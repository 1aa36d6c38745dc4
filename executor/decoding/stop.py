"""What ends a sample by its text, decoded as it comes: a stop string, or a match that can no longer change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tokenizers import Tokenizer

# A character has at most four bytes; what is still undecodable after this many tokens is no character to wait for.
_LONGEST_CHARACTER = 4
_UNDECODABLE = "\ufffd"


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

    Text is decoded a token at a time behind the tokens before it, since a token's text can hang on them (vLLM's
    incremental detokenization).
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: str | None,
        emit: Callable[[str], None] = lambda piece: None,
        until: Search | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._stop = stop
        self._emit = emit
        self._until = until
        self._text = ""
        self._decoded = 0
        self._before: list[int] = []
        self._pending: list[int] = []
        self.cut: Cut | None = None
        self.pushed = 0

    def push(self, token: int) -> bool:
        self.pushed += 1
        piece = self._piece(token)
        if not piece:
            return False
        before = len(self._text)
        self._text += piece
        found = -1 if self._stop is None else self._text.find(self._stop, max(0, before - len(self._stop) + 1))
        if self._stop is not None and found >= 0:
            end = found + len(self._stop)
            if end == len(self._text):
                self.cut = Cut(self._decoded + len(self._pending), "")
            else:
                self.cut = Cut(self._decoded, self._text[before:end])
            self._emit(self._text[before:end])
            return True
        self._emit(piece)
        self._decoded += len(self._pending)
        self._before, self._pending = self._pending, []
        return self._until is not None and self._until.push(piece)

    def _piece(self, token: int) -> str:
        """The text that this token completes; none while it ends inside a character."""
        self._pending.append(token)
        known = self._decode(self._before)
        text = self._decode(self._before + self._pending)
        if text.endswith(_UNDECODABLE) and len(self._pending) < _LONGEST_CHARACTER:
            return ""
        return text[len(known) :]

    def _decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=True) if tokens else ""
