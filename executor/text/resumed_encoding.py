"""Encoding texts that continue one another, as the solutions of a search do, without starting over."""

from __future__ import annotations

import re
from collections import OrderedDict

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from qpdsl.executor.text.context import Encoded, located

_MOST_KEPT = 1024


class ResumedEncoder:
    """Encodes a text from the last cut that it shares with a text encoded before.

    A cut is the place before an added token that is matched as it stands (not normalized, and without taking the space
    around it) and is no part of another one. Tokenizers split the text at such tokens before anything else, so what
    lies before and after a cut is encoded by itself.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._backend: Tokenizer = tokenizer.backend_tokenizer
        added = tokenizer.added_tokens_decoder
        names = [token.content for token in added.values()]
        self._cuts = {
            id: token.content
            for id, token in added.items()
            if not (token.normalized or token.lstrip or token.rstrip or token.single_word)
            if not any(token.content in name for name in names if name != token.content)
        }
        self._pattern = re.compile("|".join(map(re.escape, self._cuts.values())) or "(?!)")
        # By the text up to the end of an added token: the encoding of what lies before that token.
        self._prefixes: OrderedDict[str, Encoded] = OrderedDict()

    def encode(self, text: str) -> Encoded:
        """The tokens of the whole text, with their spans."""
        encoded = self._encoded(text)
        for index in range(len(encoded.tokens) - 1, 0, -1):
            start, end = encoded.spans[index]
            if self._cuts.get(encoded.tokens[index]) == text[start:end]:
                self._keep(text[:end], Encoded(encoded.tokens[:index], encoded.spans[:index]))
                break
        return encoded

    def _encoded(self, text: str) -> Encoded:
        for match in reversed(list(self._pattern.finditer(text))):
            before = self._prefixes.get(text[: match.end()])
            if before is not None:
                cut = match.start()
                rest = located(self._backend, text[cut:])
                spans = tuple((start + cut, end + cut) for start, end in rest.spans)
                return Encoded(before.tokens + rest.tokens, before.spans + spans)
        return located(self._backend, text)

    def _keep(self, text: str, encoded: Encoded) -> None:
        self._prefixes[text] = encoded
        self._prefixes.move_to_end(text)
        if len(self._prefixes) > _MOST_KEPT:
            self._prefixes.popitem(last=False)
