"""A loaded model with its tokenizer: what encodes and decodes its text, constrains it, and scores with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial

from tokenizers import Tokenizer

from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.engine.model.heads import ValueHead
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.text.constraint import Constrainer
from qpdsl.executor.text.context import Piece, parts_of
from qpdsl.executor.text.detokenizer import Detokenizer
from qpdsl.executor.text.text_mask import BannedTexts, TokenTexts
from qpdsl.executor.text.text_tokenizer import TextTokenizer
from qpdsl.executor.text.thinking import Thinking, thinking_of
from qpdsl.executor.text.thought_marks import ThoughtMarks
from qpdsl.executor.text.tool_format import ToolFormat, tool_format
from qpdsl.executor.verifiers.verifier import Verifier
from qpdsl.grammar.model_id import think_of

# Lists of texts whose ids are remembered, of those that may not appear.
_MAX_BANNED = 32


@dataclass
class TextModel:
    """A model of any engine, with its tokenizer; `eos` are the ids that end its output.

    `max_positions` bounds its context with what it generates, `width` is the length of its logits. `verifier` says how
    it scores, where it was loaded as a verifier. `writes`: whether it can generate; a reward model's own head gives no
    logits of tokens. `notes` are for the user who loaded it. `held` says how the weights are held, where that is more
    than a type. `own_tokens`: tokens here are those that the model draws, and not bytes of its text.
    """

    name: str
    tokenizer: TextTokenizer
    eos: frozenset[int]
    max_positions: int
    width: int
    verifier: Verifier | None = None
    writes: bool = True
    notes: tuple[str, ...] = ()
    held: str | None = None
    own_tokens: bool = True

    @property
    def kind(self) -> str | None:
        """The kind of verifier that it is; None where it was not loaded as one."""
        return None if self.verifier is None else self.verifier.kind

    @property
    def context(self) -> int | None:
        """How many tokens of the model's own a prompt and what follows it may have; None where nobody knows."""
        return self.max_positions

    @property
    def most_read(self) -> int:
        """How many tokens can stand before a place at which something is read."""
        return self.max_positions

    @cached_property
    def backend(self) -> Tokenizer:
        """The Rust tokenizer behind the transformers one."""
        backend: Tokenizer = self.tokenizer.backend_tokenizer
        return backend

    @property
    def screens(self) -> bool:
        """Whether a draw takes longer where its log-probability is read, as its head then leaves out no id."""
        return False

    @cached_property
    def detokenizer(self) -> Detokenizer:
        """The text of tokens, without special ones."""
        return Detokenizer(self.backend)

    @cached_property
    def marked_detokenizer(self) -> Detokenizer:
        """The text of tokens with special ones, as people are shown them."""
        return Detokenizer(self.backend, marked=True)

    @cached_property
    def thinking(self) -> Thinking | None:
        """How it thinks before it answers, as its id says or else its chat template; None where it does not.

        Raises ModelError where what its id says of that is no such thing.
        """
        return self._thinking[0]

    @property
    def all_notes(self) -> tuple[str, ...]:
        """`notes`, and why it is used as a model that does not think, where something says that it does."""
        return (*self.notes, *([self._thinking[1]] if self._thinking[1] else []))

    @cached_property
    def _thinking(self) -> tuple[Thinking | None, str]:
        try:
            return thinking_of(self.tokenizer, think_of(self.name))
        except ValueError as error:
            raise ModelError(self.name, f"`think` {error}") from None

    @cached_property
    def thought_marks(self) -> ThoughtMarks | None:
        """Where its thoughts end, in its tokens; None of a model that does not think."""
        return None if self.thinking is None else ThoughtMarks(self.thinking, self.tokenizer)

    @cached_property
    def tool_format(self) -> ToolFormat:
        """How it writes calls of tools."""
        return tool_format(self.tokenizer)

    @cached_property
    def corpora(self) -> dict[str, tuple[int, ...]]:
        """The token ids of texts to draft from, by text."""
        return {}

    @cached_property
    def constrainer(self) -> Constrainer:
        """Compiles constraints for this model's tokens. Raises ConstraintError."""
        return Constrainer(self.tokenizer, self.width, self.eos)

    @cached_property
    def banned(self) -> Callable[[tuple[str, ...]], BannedTexts]:
        """The ids that complete texts which may not appear. Raises ConstraintError."""
        shown, own = self.detokenizer, self.constrainer
        # None of an id that is not shown. llguidance has no byte 255.
        added = [(own.bytes_of(id) or shown.bytes_of(id)) if shown.shows(id) else b"" for id in range(self.width)]
        tokens = TokenTexts(added, self.tokenizer.get_added_vocab())
        # Each row may have texts of its own.
        return lru_cache(maxsize=_MAX_BANNED)(partial(BannedTexts, tokens))

    @cached_property
    def most_characters(self) -> int:
        """A text of more characters has more tokens than the context takes."""
        return self.max_positions * max(map(len, self.tokenizer.get_vocab()))

    def encode(self, text: str) -> list[int]:
        """Token ids of generated text, without special tokens. Threads may encode side by side."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        if self._special_ids.isdisjoint(ids):
            return ids
        # To have it split them is a switch of the tokenizer itself, which another thread may be reading with.
        return list(self._splitting.encode(text, add_special_tokens=False).ids)

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        return frozenset(id for id, token in self.tokenizer.added_tokens_decoder.items() if token.special)

    @cached_property
    def special_texts(self) -> frozenset[str]:
        """What special tokens are written as; no text that is decoded has one."""
        return frozenset(self.tokenizer.added_tokens_decoder[id].content for id in self._special_ids)

    @cached_property
    def _splitting(self) -> Tokenizer:
        """The tokenizer that reads special tokens as text."""
        splitting = Tokenizer.from_str(self.backend.to_str())
        splitting.encode_special_tokens = True
        return splitting

    def letter_ends(self, text: str) -> list[int]:
        """For each token of a text, how many of its characters are whole after the tokens up to there."""
        spans = self._splitting.encode(text, add_special_tokens=False).offsets
        # The next token goes on with a letter that is not whole.
        starts = [*(start for start, _ in spans[1:]), len(text)]
        return [min(end, start) for (_, end), start in zip(spans, starts, strict=True)] if spans else []

    def encode_after(self, tokens: tuple[int, ...], text: str) -> tuple[int, ...]:
        """Token ids of text that continues `tokens`, such that both together decode to the text of both.

        Some tokenizers put a space before whatever they encode, but not after an anchor.
        """
        whole = self.decode(tokens) + text
        alone = tuple(self.encode(text))
        if self.decode(tokens + alone) == whole:
            return alone
        anchor = self.encode("a")
        anchored = tuple(self.encode("a" + text)[len(anchor) :])
        return anchored if self.decode(tokens + anchored) == whole else alone

    def encode_said(self, tokens: tuple[int, ...], pieces: Sequence[Piece]) -> tuple[int, ...]:
        """`tokens`, and those of text in pieces that continues them. Only trusted pieces give special tokens."""
        for text, special in parts_of(self.tokenizer, pieces):
            tokens += self.encode_after(tokens, text) if special is None else (special,)
        return tokens

    def corpus(self, text: str) -> tuple[int, ...]:
        """The token ids of a text to draft from, encoded once."""
        if text not in self.corpora:
            self.corpora[text] = tuple(self.encode(text))
        return self.corpora[text]

    def decode(self, tokens: tuple[int, ...]) -> str:
        """The text of generated tokens, without special ones. See `Detokenizer`."""
        return self.detokenizer.text(tokens)


@dataclass
class PagedTextModel(TextModel):
    """A text model that a `PagedEngine` serves, in this process."""

    paged: PagedModel = field(kw_only=True)

    @classmethod
    def of(
        cls,
        name: str,
        tokenizer: TextTokenizer,
        paged: PagedModel,
        eos: frozenset[int],
        verifier: Verifier | None = None,
        notes: tuple[str, ...] = (),
        held: str | None = None,
    ) -> PagedTextModel:
        writes = not isinstance(paged.head, ValueHead)
        positions, width = paged.max_positions, paged.head.width
        told = (*notes, *paged.notes)
        return cls(name, tokenizer, eos, positions, width, verifier, writes, told, held, paged=paged)

    @property
    def screens(self) -> bool:
        head = self.paged.panel_head
        return head is not None and head.screens

    @property
    def weights(self) -> str:
        """How the weights are held, for people."""
        return self.held or str(self.paged.dtype).removeprefix("torch.")
