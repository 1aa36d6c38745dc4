"""The text of tokens that come one by one: incremental detokenization, as vLLM does it."""

from __future__ import annotations

from tokenizers import Tokenizer

# A character has at most four bytes. Tokens that are still undecodable after this many are no character to wait for.
_LONGEST_CHARACTER = 4
_UNDECODABLE = "\ufffd"
_MOST_KEPT = 65_536

Tokens = tuple[int, ...]


class Detokenizer:
    """Decodes tokens together with the tokens before them, since a token's text can depend on those.

    What has been decoded is kept: the samples of one model share the object, and repeat one another's text.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._pieces: dict[tuple[Tokens, Tokens], str] = {}

    def piece(self, before: Tokens, pending: Tokens) -> str:
        """The text that the last of the `pending` tokens completes; none while it ends inside a character."""
        piece = self._pieces.get((before, pending))
        if piece is None:
            if len(self._pieces) >= _MOST_KEPT:
                self._pieces.clear()
            piece = self._pieces[before, pending] = self._decoded(before, pending)
        return piece

    def _decoded(self, before: Tokens, pending: Tokens) -> str:
        text = self._text(before + pending)
        if text.endswith(_UNDECODABLE) and len(pending) < _LONGEST_CHARACTER:
            return ""
        return text[len(self._text(before)) :]

    def _text(self, tokens: Tokens) -> str:
        return self._tokenizer.decode(list(tokens), skip_special_tokens=True) if tokens else ""
