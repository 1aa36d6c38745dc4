"""A row's context, which is all text before what a model generates, and how it is encoded for the model.

A chat template is rendered with marks in the place of the messages, so it is known which characters are the template's.
Special tokens are recognized only in those, so an input cannot forge a turn.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

# A text, and whether it is trusted: whether the tokenizer's added tokens count in it.
Piece = tuple[str, bool]


class ContextError(Exception):
    """A context that a model's tokenizer cannot take; the message says why."""


@dataclass(frozen=True, slots=True)
class Context:
    """Chat turns (role, text), or the pieces of a plain prompt: text, and whether the program's author wrote it.

    The first `opening` of the pieces are those of the prompt that the context began with; all of them where it is None.
    `grown`: the context holds text that was generated.
    """

    turns: tuple[tuple[str, str], ...] = ()
    prompt: tuple[Piece, ...] = ()
    opening: int | None = field(default=None, compare=False)
    grown: bool = field(default=False, compare=False)

    @property
    def problem(self) -> str:
        """What a verifier is shown where the program does not say: the first user turn, or the first prompt.

        Empty in a conversation without a user turn.
        """
        if self.turns:
            return next((text for role, text in self.turns if role == "user"), "")
        return "".join(text for text, _ in self.prompt[: self.opening])

    @property
    def system(self) -> str:
        """The system turn; empty without one."""
        return next((text for role, text in self.turns if role == "system"), "")


@dataclass(frozen=True, slots=True)
class Encoded:
    """Token ids of a text, and the span [start, end) of each in its characters."""

    tokens: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]

    def last_before(self, end: int) -> int:
        """The index of the last token of the first `end` characters. Raises ContextError where one crosses `end`."""
        index = bisect_right(self.spans, end, key=lambda span: span[1]) - 1
        if index < 0 or (index + 1 < len(self.spans) and self.spans[index + 1][0] < end):
            raise ContextError("its tokenizer has tokens that cross the end of a step")
        return index


def encode(tokenizer: PreTrainedTokenizerFast, context: Context) -> tuple[int, ...]:
    """Token ids of a context, up to where the model's own text begins. Raises ContextError.

    Text that the program's author did not write never becomes a guarded token, so an input cannot forge a turn: those
    are the special tokens, and the added ones that the chat template writes. Where there is nothing to forge, the ids
    are those of `apply_chat_template`, or of the tokenizer's bos and the prompt.
    """
    if context.turns:
        return encode_pieces(tokenizer, _chat_pieces(tokenizer, context.turns))
    return automatic_prefix(tokenizer) + encode_pieces(tokenizer, list(context.prompt))


def encode_pieces(tokenizer: PreTrainedTokenizerFast, pieces: list[Piece]) -> tuple[int, ...]:
    """Token ids of text in pieces. Only trusted pieces give guarded tokens."""
    whole = tuple(tokenizer.encode("".join(text for text, _ in pieces), add_special_tokens=False))
    return whole if _only_trusted(tokenizer, pieces, whole) else _encode_separately(tokenizer, pieces).tokens


def encode_located(
    tokenizer: PreTrainedTokenizerFast, pieces: list[Piece], whole: Callable[[str], Encoded] | None = None
) -> Encoded:
    """As `encode_pieces`, with the span of each token in the text of all pieces.

    `whole` encodes a text with its added tokens, as `ResumedEncoder.encode` does; by default `located`.
    """
    text = "".join(text for text, _ in pieces)
    encoded = located(tokenizer.backend_tokenizer, text) if whole is None else whole(text)
    return encoded if _only_trusted(tokenizer, pieces, encoded.tokens) else _encode_separately(tokenizer, pieces)


def located(tokenizer: Tokenizer, text: str) -> Encoded:
    """The tokens of a text, added tokens included, with their spans."""
    encoding = tokenizer.encode(text, add_special_tokens=False)
    return Encoded(tuple(encoding.ids), tuple(encoding.offsets))


def _only_trusted(tokenizer: PreTrainedTokenizerFast, pieces: list[Piece], whole: tuple[int, ...]) -> bool:
    """Whether the guarded tokens in `whole` are those of the trusted pieces, in number and order."""
    guarded = _guarded(tokenizer)
    trusted_ids = [id for text, trusted in pieces if trusted for id in _guarded_in(tokenizer, text)]
    return [id for id in whole if id in guarded] == trusted_ids


@lru_cache(maxsize=8)
def _guarded(tokenizer: PreTrainedTokenizerFast) -> dict[int, str]:
    """The added tokens that make up the frame of a conversation, by id: special ones, and those of the template.

    Others, such as runs of spaces, are text like any other.
    """
    template = str(tokenizer.chat_template or "")
    added = tokenizer.added_tokens_decoder.items()
    return {
        id: token.content
        for id, token in added
        if token.special or (token.content.strip() and token.content in template)
    }


@lru_cache(maxsize=4096)
def _guarded_in(tokenizer: PreTrainedTokenizerFast, text: str) -> tuple[int, ...]:
    """The guarded tokens in a piece of a template or prompt. It is cached, as a run has the same few pieces."""
    guarded = _guarded(tokenizer)
    return tuple(id for id in tokenizer.encode(text, add_special_tokens=False) if id in guarded)


def parts_of(tokenizer: PreTrainedTokenizerFast, pieces: Sequence[Piece]) -> Iterator[tuple[str, int | None]]:
    """Texts that stand together, and between them the guarded tokens of trusted pieces: their text and their id."""
    names = {content: id for id, content in _guarded(tokenizer).items()}
    if not any(name in text for text, trusted in pieces if trusted for name in names):
        if run := "".join(text for text, _ in pieces):
            yield run, None
        return
    pattern = re.compile("(" + "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True)) + ")")
    run = ""
    for text, trusted in pieces:
        for part in pattern.split(text) if trusted else [text]:
            if trusted and part in names:
                if run:
                    yield run, None
                run = ""
                yield part, names[part]
            else:
                run += part
    if run:
        yield run, None


def _encode_separately(tokenizer: PreTrainedTokenizerFast, pieces: list[Piece]) -> Encoded:
    """As `encode_located`, with all text between the guarded tokens of trusted pieces encoded without such tokens."""
    names = {content: id for id, content in _guarded(tokenizer).items()}
    pattern = re.compile("(" + "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True)) + ")")
    plain, renumbered = _without_guarded_tokens(tokenizer)
    ids: list[int] = []
    spans: list[tuple[int, int]] = []
    # The text since the last added token, and its end in the text of all pieces.
    run, length = "", 0

    def end_run() -> None:
        encoded = plain.encode(run, add_special_tokens=False)
        ids.extend(renumbered.get(id, id) for id in encoded.ids)
        spans.extend((length - len(run) + start, length - len(run) + end) for start, end in encoded.offsets)

    for text, trusted in pieces:
        for part in pattern.split(text) if trusted else [text]:
            if trusted and part in names:
                end_run()
                run = ""
                ids.append(names[part])
                spans.append((length, length + len(part)))
            else:
                run += part
            length += len(part)
    end_run()
    return Encoded(tuple(ids), tuple(spans))


@lru_cache(maxsize=8)
def _without_guarded_tokens(tokenizer: PreTrainedTokenizerFast) -> tuple[Tokenizer, dict[int, int]]:
    """The tokenizer that reads guarded tokens as text, and the ids of its other added tokens by those that it gives."""
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    guarded = _guarded(tokenizer)
    kept = [token for token in backend["added_tokens"] if token["id"] not in guarded]
    backend["added_tokens"] = []
    # It names special tokens, which are removed.
    backend["post_processor"] = None
    plain = Tokenizer.from_str(json.dumps(backend))
    plain.add_tokens([AddedToken(**{name: value for name, value in token.items() if name != "id"}) for token in kept])
    given = ((plain.token_to_id(token["content"]), token["id"]) for token in kept)
    return plain, {mine: theirs for mine, theirs in given if mine is not None}


def automatic_prefix(tokenizer: PreTrainedTokenizerFast) -> tuple[int, ...]:
    """The ids that the tokenizer puts before any text, such as bos; not those after it, which would end the text."""
    bare = tokenizer.encode("a", add_special_tokens=False)
    ids = tokenizer.encode("a", add_special_tokens=True)
    for start in range(len(ids) - len(bare) + 1):
        if ids[start : start + len(bare)] == bare:
            return tuple(ids[:start])
    return ()


def chat_frame(
    tokenizer: PreTrainedTokenizerFast, turns: Sequence[tuple[str, str | None]], *, to_go_on: bool = True
) -> list[str | int]:
    """The chat template rendered around turns (role, text), with the generation prompt after them if `to_go_on`.

    Where a turn's text is None, the result has the turn's number in its place. Raises ContextError.
    """
    # Marks replace the messages, so that their places are found whatever a message says.
    marks = {f"qpdsl{index}message{index}x": index for index in range(len(turns))}
    filled = [(role, mark if text is None else text) for (role, text), mark in zip(turns, marks, strict=True)]
    parts = re.split("(" + "|".join(marks) + ")", _render(tokenizer, filled, to_go_on=to_go_on))
    return [marks.get(part, part) for part in parts if part]


def _chat_pieces(tokenizer: PreTrainedTokenizerFast, turns: tuple[tuple[str, str], ...]) -> list[Piece]:
    """The rendered chat template as pieces, of which the message texts are not trusted."""
    frame = _frame(tokenizer, tuple(role for role, _ in turns))
    rendered = _render(tokenizer, list(turns))
    pieces: list[Piece] = []
    end = 0
    for part in frame:
        # Some templates strip the messages, of some roles or of all.
        choices = [part] if isinstance(part, str) else [turns[part][1], turns[part][1].strip()]
        for text in choices:
            if rendered.startswith(text, end):
                pieces.append((text, isinstance(part, str)))
                end += len(text)
                break
        else:
            break
    if end != len(rendered) or len(pieces) != len(frame):
        raise ContextError("its chat template rewrites the messages, so their text cannot be told from its own")
    return pieces


@lru_cache(maxsize=256)
def _frame(tokenizer: PreTrainedTokenizerFast, roles: tuple[str, ...]) -> list[str | int]:
    return chat_frame(tokenizer, [(role, None) for role in roles])


@lru_cache(maxsize=64)
def template_strips(tokenizer: PreTrainedTokenizerFast) -> bool:
    """Whether the chat template strips a user's text. Raises ContextError."""
    return " x " not in _render(tokenizer, [("user", " x ")])


def _render(tokenizer: PreTrainedTokenizerFast, turns: list[tuple[str, str]], *, to_go_on: bool = True) -> str:
    if not tokenizer.chat_template:
        raise ContextError("its tokenizer has no chat template; use `prompt` instead of `chat`")
    messages: list[dict[str, Any]] = [{"role": role, "content": text} for role, text in turns]
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=to_go_on))
    except Exception as error:  # a template may raise anything of jinja's
        raise ContextError(f"its chat template does not take these turns: {error}") from error
