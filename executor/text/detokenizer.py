"""The text of tokens that come one by one."""

from __future__ import annotations

from tokenizers import Tokenizer

# A character has at most four bytes; what is still undecodable after this many tokens is no character to wait for.
_LONGEST_CHARACTER = 4
_UNDECODABLE = "\ufffd"
_KNOWN_MAX = 65_536

Tokens = tuple[int, ...]


class Spelling:
    """Decodes tokens behind the tokens before them, since a token's text can hang on them (vLLM's incremental
    detokenization).

    What has been decoded is kept: samples of one model share the object, and say the same things over and over.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[tuple[Tokens, Tokens], str] = {}

    def piece(self, before: Tokens, pending: Tokens) -> str:
        """The text that the last of the `pending` tokens completes; none while it ends inside a character."""
        piece = self._known.get((before, pending))
        if piece is None:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            piece = self._known[before, pending] = self._decoded(before, pending)
        return piece

    def _decoded(self, before: Tokens, pending: Tokens) -> str:
        text = self._text(before + pending)
        if text.endswith(_UNDECODABLE) and len(pending) < _LONGEST_CHARACTER:
            return ""
        return text[len(self._text(before)) :]

    def _text(self, tokens: Tokens) -> str:
        return self._tokenizer.decode(list(tokens), skip_special_tokens=True) if tokens else ""
