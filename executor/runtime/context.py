"""A row's context: what was said before anything is generated, and how a model's tokens come of it."""

from __future__ import annotations

import json
import re
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


def encode(tokenizer: PreTrainedTokenizerFast, context: Context) -> tuple[int, ...]:
    """Token ids of a context, up to where the model's own text begins. Raises ContextError.

    Text that the program's author did not write never becomes an added token, so an input cannot forge a turn. Where
    there is nothing to forge, the ids are those of `apply_chat_template`, or of the tokenizer's bos and the prompt.
    """
    if context.turns:
        return encode_pieces(tokenizer, _chat_pieces(tokenizer, context.turns))
    return _automatic_prefix(tokenizer) + encode_pieces(tokenizer, list(context.prompt))


def encode_pieces(tokenizer: PreTrainedTokenizerFast, pieces: list[Piece]) -> tuple[int, ...]:
    """Token ids of text in pieces, each with whether the tokenizer's added tokens (special or not) count in it."""
    whole = tuple(tokenizer.encode("".join(text for text, _ in pieces), add_special_tokens=False))
    added = tokenizer.added_tokens_decoder.keys()
    theirs = [id for text, trusted in pieces if trusted for id in _added_in(tokenizer, text)]
    # The added tokens that came out must be those of the trusted pieces by themselves, in number and order.
    if [id for id in whole if id in added] == theirs:
        return whole
    return _encode_apart(tokenizer, pieces)


@lru_cache(maxsize=4096)
def _added_in(tokenizer: PreTrainedTokenizerFast, text: str) -> tuple[int, ...]:
    """The added tokens in a piece of a template or prompt; a run meets the same few pieces over and over."""
    added = tokenizer.added_tokens_decoder.keys()
    return tuple(id for id in tokenizer.encode(text, add_special_tokens=False) if id in added)


def _encode_apart(tokenizer: PreTrainedTokenizerFast, pieces: list[Piece]) -> tuple[int, ...]:
    """As `encode_pieces`, with everything between the trusted pieces' added tokens encoded as mere text."""
    names = {token.content: id for id, token in tokenizer.added_tokens_decoder.items()}
    pattern = re.compile("(" + "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True)) + ")")
    plain = _without_added_tokens(tokenizer)
    ids: list[int] = []
    run = ""
    for text, trusted in pieces:
        for part in pattern.split(text) if trusted else [text]:
            if trusted and part in names:
                ids += [*plain.encode(run, add_special_tokens=False).ids, names[part]]
                run = ""
            else:
                run += part
    return tuple(ids + plain.encode(run, add_special_tokens=False).ids)


@lru_cache(maxsize=8)
def _without_added_tokens(tokenizer: PreTrainedTokenizerFast) -> Tokenizer:
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    backend["added_tokens"] = []
    # It names special tokens, which are gone.
    backend["post_processor"] = None
    return Tokenizer.from_str(json.dumps(backend))


def _automatic_prefix(tokenizer: PreTrainedTokenizerFast) -> tuple[int, ...]:
    """What the tokenizer puts before any text, such as bos; what it puts after it would end the text."""
    bare = tokenizer.encode("a", add_special_tokens=False)
    ids = tokenizer.encode("a", add_special_tokens=True)
    for start in range(len(ids) - len(bare) + 1):
        if ids[start : start + len(bare)] == bare:
            return tuple(ids[:start])
    return ()


def chat_frame(tokenizer: PreTrainedTokenizerFast, turns: list[tuple[str, str | None]]) -> list[str | int]:
    """The chat template rendered around turns (role, text), with the generation prompt after them.

    Where a turn's text is None its number stands in the result in the text's place. Raises ContextError.
    """
    if not tokenizer.chat_template:
        raise ContextError("its tokenizer has no chat template; use `prompt` instead of `chat`")
    # Marks stand in for the messages, so that they are found again whatever a message says.
    marks = {f"qpdsl{index}message{index}x": index for index in range(len(turns))}
    filled = [(role, mark if text is None else text) for (role, text), mark in zip(turns, marks, strict=True)]
    parts = re.split("(" + "|".join(marks) + ")", _render(tokenizer, filled))
    return [marks.get(part, part) for part in parts if part]


def _chat_pieces(tokenizer: PreTrainedTokenizerFast, turns: tuple[tuple[str, str], ...]) -> list[Piece]:
    """The rendered chat template, the message texts in it marked as not the author's."""
    frame = chat_frame(tokenizer, [(role, None) for role, _ in turns])
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


def _render(tokenizer: PreTrainedTokenizerFast, turns: list[tuple[str, str]]) -> str:
    messages: list[dict[str, Any]] = [{"role": role, "content": text} for role, text in turns]
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    except Exception as error:  # a template may raise anything of jinja's
        raise ContextError(f"its chat template does not take these turns: {error}") from error
