"""A row's context: what was said before anything is generated, and how a model's tokens come of it."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

Piece = tuple[str, bool]


class ContextError(Exception):
    """A context that a model's tokenizer cannot take; the message says why."""


@dataclass(frozen=True, slots=True)
class Context:
    """Chat turns (role, text), or the pieces of a plain prompt: text, and whether the program's author wrote it."""

    turns: tuple[tuple[str, str], ...] = ()
    prompt: tuple[Piece, ...] = ()

    @property
    def problem(self) -> str:
        """What a verifier takes for the question: the last user turn, or the whole prompt."""
        users = [text for role, text in self.turns if role == "user"]
        return users[-1] if users else "".join(text for text, _ in self.prompt)

    @property
    def system(self) -> str:
        """The system turn; empty without one."""
        return next((text for role, text in self.turns if role == "system"), "")


@dataclass(frozen=True, slots=True)
class Encoded:
    """Token ids of a text, and the characters [start, end) of it that each stands for."""

    tokens: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]

    def last_before(self, place: int) -> int:
        """The number of the last token of the first `place` characters. Raises ContextError where one crosses it."""
        index = bisect_right(self.spans, place, key=lambda span: span[1]) - 1
        if index < 0 or (index + 1 < len(self.spans) and self.spans[index + 1][0] < place):
            raise ContextError("its tokenizer has tokens that cross the end of a step")
        return index


def encode(tokenizer: PreTrainedTokenizerFast, context: Context) -> tuple[int, ...]:
    """Token ids of a context, up to where the model's own text begins. Raises ContextError.

    Text that the program's author did not write never becomes an added token, so an input cannot forge a turn. Where
    there is nothing to forge, the ids are those of `apply_chat_template`, or of the tokenizer's bos and the prompt.
    """
    if context.turns:
        return encode_pieces(tokenizer, _chat_pieces(tokenizer, context.turns))
    return automatic_prefix(tokenizer) + encode_pieces(tokenizer, list(context.prompt))


def encode_pieces(tokenizer: PreTrainedTokenizerFast, pieces: list[Piece]) -> tuple[int, ...]:
    """Token ids of text in pieces, each with whether the tokenizer's added tokens (special or not) count in it."""
    whole = tuple(tokenizer.encode("".join(text for text, _ in pieces), add_special_tokens=False))
    return whole if _is_theirs(tokenizer, pieces, whole) else _encode_apart(tokenizer, pieces).tokens


def encode_located(
    tokenizer: PreTrainedTokenizerFast, pieces: list[Piece], whole: Callable[[str], Encoded] | None = None
) -> Encoded:
    """As `encode_pieces`, with the place of each token in the text of all pieces.

    `whole` encodes a text with its added tokens, such as `ResumedEncoder.encode` does.
    """
    text = "".join(text for text, _ in pieces)
    encoded = located(tokenizer.backend_tokenizer, text) if whole is None else whole(text)
    return encoded if _is_theirs(tokenizer, pieces, encoded.tokens) else _encode_apart(tokenizer, pieces)


def located(tokenizer: Tokenizer, text: str) -> Encoded:
    """A text's tokens, the added ones among them, with their places."""
    encoding = tokenizer.encode(text, add_special_tokens=False)
    return Encoded(tuple(encoding.ids), tuple(encoding.offsets))


def _is_theirs(tokenizer: PreTrainedTokenizerFast, pieces: list[Piece], whole: tuple[int, ...]) -> bool:
    """Whether the added tokens that came out are those of the trusted pieces by themselves, in number and order."""
    added = tokenizer.added_tokens_decoder.keys()
    theirs = [id for text, trusted in pieces if trusted for id in _added_in(tokenizer, text)]
    return [id for id in whole if id in added] == theirs


@lru_cache(maxsize=4096)
def _added_in(tokenizer: PreTrainedTokenizerFast, text: str) -> tuple[int, ...]:
    """The added tokens in a piece of a template or prompt; a run meets the same few pieces over and over."""
    added = tokenizer.added_tokens_decoder.keys()
    return tuple(id for id in tokenizer.encode(text, add_special_tokens=False) if id in added)


def _encode_apart(tokenizer: PreTrainedTokenizerFast, pieces: list[Piece]) -> Encoded:
    """As `encode_located`, with everything between the trusted pieces' added tokens encoded as mere text."""
    names = {token.content: id for id, token in tokenizer.added_tokens_decoder.items()}
    pattern = re.compile("(" + "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True)) + ")")
    plain = _without_added_tokens(tokenizer)
    ids: list[int] = []
    spans: list[tuple[int, int]] = []
    run, at = "", 0

    def end_run() -> None:
        encoded = plain.encode(run, add_special_tokens=False)
        ids.extend(encoded.ids)
        spans.extend((at - len(run) + start, at - len(run) + end) for start, end in encoded.offsets)

    for text, trusted in pieces:
        for part in pattern.split(text) if trusted else [text]:
            if trusted and part in names:
                end_run()
                run = ""
                ids.append(names[part])
                spans.append((at, at + len(part)))
            else:
                run += part
            at += len(part)
    end_run()
    return Encoded(tuple(ids), tuple(spans))


@lru_cache(maxsize=8)
def _without_added_tokens(tokenizer: PreTrainedTokenizerFast) -> Tokenizer:
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    backend["added_tokens"] = []
    # It names special tokens, which are gone.
    backend["post_processor"] = None
    return Tokenizer.from_str(json.dumps(backend))


def automatic_prefix(tokenizer: PreTrainedTokenizerFast) -> tuple[int, ...]:
    """What the tokenizer puts before any text, such as bos; what it puts after it would end the text."""
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

    Where a turn's text is None its number stands in the result in the text's place. Raises ContextError.
    """
    # Marks stand in for the messages, so that they are found again whatever a message says.
    marks = {f"qpdsl{index}message{index}x": index for index in range(len(turns))}
    filled = [(role, mark if text is None else text) for (role, text), mark in zip(turns, marks, strict=True)]
    parts = re.split("(" + "|".join(marks) + ")", _render(tokenizer, filled, to_go_on=to_go_on))
    return [marks.get(part, part) for part in parts if part]


def _chat_pieces(tokenizer: PreTrainedTokenizerFast, turns: tuple[tuple[str, str], ...]) -> list[Piece]:
    """The rendered chat template, the message texts in it marked as not the author's."""
    frame = _frame(tokenizer, tuple(role for role, _ in turns))
    rendered = _render(tokenizer, list(turns))
    pieces: list[Piece] = []
    at = 0
    for part in frame:
        # Some templates strip the messages, of some roles or of all.
        choices = [part] if isinstance(part, str) else [turns[part][1], turns[part][1].strip()]
        for text in choices:
            if rendered.startswith(text, at):
                pieces.append((text, isinstance(part, str)))
                at += len(text)
                break
        else:
            break
    if at != len(rendered) or len(pieces) != len(frame):
        raise ContextError("its chat template rewrites the messages, so their text cannot be told from its own")
    return pieces


@lru_cache(maxsize=256)
def _frame(tokenizer: PreTrainedTokenizerFast, roles: tuple[str, ...]) -> list[str | int]:
    return chat_frame(tokenizer, [(role, None) for role in roles])


@lru_cache(maxsize=64)
def template_strips(tokenizer: PreTrainedTokenizerFast) -> bool:
    """Whether the chat template takes the space around a user's text away. Raises ContextError."""
    return " x " not in _render(tokenizer, [("user", " x ")])


def _render(tokenizer: PreTrainedTokenizerFast, turns: list[tuple[str, str]], *, to_go_on: bool = True) -> str:
    if not tokenizer.chat_template:
        raise ContextError("its tokenizer has no chat template; use `prompt` instead of `chat`")
    messages: list[dict[str, Any]] = [{"role": role, "content": text} for role, text in turns]
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=to_go_on))
    except Exception as error:  # a template may raise anything of jinja's
        raise ContextError(f"its chat template does not take these turns: {error}") from error
