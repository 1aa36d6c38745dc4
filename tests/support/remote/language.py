"""A language model without weights: its logits are hashes of the tokens before, so all that it writes can be told."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import llguidance
import numpy as np

from qpdsl import zoo
from qpdsl.executor.text.constraint import Constrainer, ConstraintError, TokenMask

Floats = np.ndarray[Any, np.dtype[np.float64]]
# What it writes for a prompt and a seed where a test says so; None for what the hashes say.
Writes = Callable[[str, int], str | None]
_WORDS = 48
# Logits above the rest: of the words, and of the end, which comes about once in seventy tokens.
_OF_WORDS, _OF_END = 6.0, 5.5


@dataclass(frozen=True)
class Drawing:
    """How tokens are drawn. Without a seed they are other ones each time."""

    temperature: float = 1.0
    seed: int | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    ignore_eos: bool = False
    most: int = 16
    held_to: tuple[str, str] | None = None


@dataclass(frozen=True)
class Token:
    """A drawn token: `logprobs` are the model's at temperature 1 over all ids, float64 [V]."""

    id: int
    logprobs: Floats


class Language:
    """A model with the tokenizer and the chat template of `zoo/counting`."""

    def __init__(self) -> None:
        from transformers import AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(zoo.path("zoo/counting"))
        self.size = len(self.tokenizer)
        self.eos = int(self.tokenizer.eos_token_id)
        self.constrainer = Constrainer(self.tokenizer, self.size, {self.eos})
        texts = {token: self.decode([token]) for token in range(self.size)}
        words = [token for token, text in texts.items() if re.fullmatch(r" [a-z]{2,8}| \d|[.,]", text)]
        self._words = np.array(self._apart(words))
        self._special = np.array(sorted(set(self.tokenizer.all_special_ids) - {self.eos}))

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def _apart(self, words: Sequence[int]) -> list[int]:
        """Words of which no two become other tokens side by side, so that text is cut as it was drawn."""
        chosen: list[int] = []
        for word in words:
            pairs = [pair for other in (*chosen, word) for pair in ([other, word], [word, other])]
            if len(chosen) < _WORDS and all(self.encode(self.decode(pair)) == pair for pair in pairs):
                chosen.append(word)
        return chosen

    def chat(self, messages: Sequence[dict[str, Any]], *, goes_on: bool = False) -> list[int]:
        """Ids of a conversation; with `goes_on` its last turn is left open, else a new one is opened."""
        flat = [{"role": message["role"], "content": _text(message.get("content"))} for message in messages]
        written = self.tokenizer.apply_chat_template(
            flat, tokenize=False, add_generation_prompt=not goes_on, continue_final_message=goes_on
        )
        return self.encode(str(written))

    def logits(self, ids: Sequence[int]) -> Floats:
        """float64 [V]"""
        digest = hashlib.blake2b(np.asarray(ids, dtype="<i4").tobytes(), digest_size=8).digest()
        values = np.random.default_rng(int.from_bytes(digest, "little")).normal(size=self.size)
        values[self._words] += _OF_WORDS
        values[self.eos] += _OF_END
        values[self._special] -= 50.0
        return values

    def logprobs(self, ids: Sequence[int]) -> Floats:
        """The log-probabilities of what follows: float64 [V]."""
        return _log_softmax(self.logits(ids))

    def mask(self, kind: str, source: str) -> Callable[[], TokenMask]:
        """What holds to a constraint. Raises ConstraintError for one that is none."""
        if kind == "choice":
            kind, source = "regex", "|".join(re.escape(option) for option in json.loads(source))
        if kind == "gbnf":
            try:
                kind, source = "grammar", llguidance.gbnf_to_lark.gbnf_to_lark(source)
            except Exception as error:  # its parser raises anything
                raise ConstraintError(str(error)) from error
        return self.constrainer.masks(kind, source)

    def write(self, prompt: Sequence[int], how: Drawing, writes: Writes | None = None) -> Iterator[Token]:
        """Draws up to `most` tokens after a prompt, the end included. Raises ConstraintError."""
        seed = secrets.randbits(62) if how.seed is None else how.seed
        told = None if writes is None else writes(str(self.tokenizer.decode(list(prompt))), seed)
        mask = None if how.held_to is None else self.mask(*how.held_to)()
        ids, done = list(prompt), False
        script = None if told is None else iter([*self.encode(told), self.eos])
        for place in range(how.most):
            if done:
                return
            logits = self.logits(ids)
            logprobs = _log_softmax(logits)
            if script is not None:
                token = next(script)
            else:
                token = self._draw(logits, how, mask, np.random.default_rng([seed, place]))
            if mask is not None and script is None:
                done = mask.push(token)
            ids.append(token)
            yield Token(token, logprobs)
            if token == self.eos and not how.ignore_eos:
                return

    def _draw(self, logits: Floats, how: Drawing, mask: TokenMask | None, noise: np.random.Generator) -> int:
        if mask is not None:
            bits = np.zeros((1, -(-self.size // 32)), dtype=np.int32)
            mask.fill([mask], bits)
            allowed = np.unpackbits(bits.view(np.uint8), bitorder="little")[: self.size].astype(bool)
            logits = np.where(allowed, logits, -np.inf)
        if how.temperature <= 0 or how.top_k == 1:
            return int(np.argmax(logits))
        logits = logits / how.temperature
        if how.top_k is not None and 0 < how.top_k < self.size:
            logits = np.where(logits >= np.sort(logits)[-how.top_k], logits, -np.inf)
        if how.top_p is not None and how.top_p < 1:
            order = np.argsort(-logits)
            before = np.cumsum(np.exp(_log_softmax(logits)[order])) - np.exp(_log_softmax(logits)[order])
            logits[order[before >= how.top_p]] = -np.inf
        if how.min_p:
            probabilities = np.exp(_log_softmax(logits))
            logits = np.where(probabilities >= how.min_p * probabilities.max(), logits, -np.inf)
        return int(np.argmax(logits + noise.gumbel(size=self.size)))


def _log_softmax(logits: Floats) -> Floats:
    shifted = logits - logits.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()), dtype=np.float64)


def _text(content: object) -> str:
    """A message's content, which is text or a list of parts."""
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content)
    return "" if content is None else str(content)


@cache
def language() -> Language:
    return Language()
