from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tokenizers import Tokenizer
from transformers import (
    PreTrainedTokenizerFast,
)

from qpdsl.executor.engine.model.heads import ValueHead
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.text.constraint import Constrainer
from qpdsl.executor.text.detokenizer import Spelling
from qpdsl.executor.verifiers.verifier import Verifier


class ModelError(Exception):
    """A model that cannot be loaded or used; the message names it and says why."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"model `{name}` cannot be loaded: {reason}")


@dataclass
class TextModel:
    """A paged model with its tokenizer, and how it scores where it was loaded as a verifier of some `kind`."""

    name: str
    tokenizer: PreTrainedTokenizerFast
    paged: PagedModel
    eos: frozenset[int]
    kind: str | None = None
    verifier: Verifier | None = None

    @property
    def writes(self) -> bool:
        """Whether it can generate: a reward model's head has no words."""
        return not isinstance(self.paged.head, ValueHead)

    @cached_property
    def backend(self) -> Tokenizer:
        """The Rust tokenizer behind the transformers one."""
        backend: Tokenizer = self.tokenizer.backend_tokenizer
        return backend

    @cached_property
    def spelling(self) -> Spelling:
        """Decodes tokens as they are drawn."""
        return Spelling(self.backend)

    @cached_property
    def pieces(self) -> dict[int, str]:
        """The text of tokens that have been shown one by one."""
        return {}

    @cached_property
    def constrainer(self) -> Constrainer:
        """Compiles constraints for this model's tokens. Raises ConstraintError."""
        return Constrainer(self.tokenizer, self.paged.head.width, self.eos)

    def encode(self, text: str) -> list[int]:
        """Token ids of generated text: no special token comes of it."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        return ids

    def encode_after(self, tokens: tuple[int, ...], text: str) -> tuple[int, ...]:
        """Token ids of text that goes on after `tokens`, such that both together decode to the text of both.

        Some tokenizers put a space before whatever they encode; behind an anchor they do not.
        """
        wanted = self.decode(tokens) + text
        alone = tuple(self.encode(text))
        if self.decode(tokens + alone) == wanted:
            return alone
        anchor = self.encode("a")
        anchored = tuple(self.encode("a" + text)[len(anchor) :])
        return anchored if self.decode(tokens + anchored) == wanted else alone

    def decode(self, tokens: tuple[int, ...]) -> str:
        """The text of generated tokens, without special ones."""
        return self.backend.decode(list(tokens), skip_special_tokens=True)
