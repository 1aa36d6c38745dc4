"""Random texts that a constraint lets through, by llguidance over a tokenizer of bytes; no model is needed."""

from __future__ import annotations

import random

import llguidance
import numpy as np
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from qpdsl.executor.text.constraint import json_grammar

_EOS = 256
_GRAMMARS = {
    "regex": llguidance.LLMatcher.grammar_from_regex,
    "json_schema": json_grammar,
}


class _Bytes:
    """The tokenizer that llguidance is told of: a token for each byte, and one that ends the text."""

    eos_token_id = bos_token_id = _EOS
    unk_token_id = None
    tokens = (*(bytes([value]) for value in range(256)), b"<eos>")
    special_token_ids = (_EOS,)

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


_TOKENIZER = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()), n_vocab=_EOS + 1)


class Constraint:
    """A constraint of the kind `regex` or `json_schema`. Raises ValueError where llguidance refuses it."""

    def __init__(self, kind: str, source: str) -> None:
        self._matcher = llguidance.LLMatcher(_TOKENIZER, _GRAMMARS[kind](source), log_level=0)
        if self._matcher.is_error():
            raise ValueError(self._matcher.get_error())

    def walk(self, chance: random.Random, most: int = 120) -> str | None:
        """A text that it lets through, bytes drawn one by one, ASCII more often; None for a longer one."""
        matcher, text = self._matcher.deep_copy(), bytearray()
        bits = allocate_token_bitmask(1, _EOS + 1)
        while len(text) < most and not matcher.is_stopped():
            fill_next_token_bitmask(matcher, bits, 0)
            allowed = np.flatnonzero(np.unpackbits(bits.view(np.uint8)[0], bitorder="little")[: _EOS + 1]).tolist()
            if allowed[-1:] == [_EOS] and (len(allowed) == 1 or chance.random() < 0.5):
                return text.decode()
            ascii = [token for token in allowed if token < 128]
            token = chance.choice(ascii if ascii and chance.random() < 0.7 else [t for t in allowed if t != _EOS])
            assert matcher.consume_token(token)
            text.append(token)
        return text.decode() if matcher.is_accepting() else None

    def takes(self, text: str) -> bool:
        """Whether it lets the text through."""
        matcher, tokens = self._matcher.deep_copy(), list(text.encode())
        if matcher.validate_tokens(tokens) < len(tokens):
            return False
        return bool(matcher.consume_tokens(tokens) and matcher.is_accepting())
