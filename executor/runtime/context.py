"""A row's context: what was said before anything is generated, and how a model's tokens come of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

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
    """Token ids of a context, up to where the model's own text begins.

    Text that the program's author did not write never becomes a special token, so an input cannot forge a turn. Where
    there is nothing to forge, the ids are those of `apply_chat_template` or of a plain call of the tokenizer.
    """
    if context.turns:
        return encode_pieces(tokenizer, _chat_pieces(tokenizer, context.turns))
    return encode_pieces(tokenizer, list(context.prompt), automatic=True)


def encode_pieces(tokenizer: PreTrainedTokenizerFast, pieces: list[Piece], automatic: bool = False) -> tuple[int, ...]:
    """Token ids of text in pieces, each with whether special tokens in it count as such.

    `automatic`: with the special tokens that the tokenizer puts around any text (such as a leading bos)."""
    specials = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]
    whole = "".join(text for text, _ in pieces)
    if not any(special in text for text, trusted in pieces if not trusted for special in specials):
        return tuple(tokenizer.encode(whole, add_special_tokens=automatic))
    ids = _automatic_prefix(tokenizer) if automatic else []
    run = ""
    pattern = re.compile("(" + "|".join(re.escape(s) for s in sorted(specials, key=len, reverse=True)) + ")")
    for text, trusted in pieces:
        for part in pattern.split(text) if trusted else [text]:
            if trusted and part in specials:
                ids += _plain(tokenizer, run)
                ids.append(tokenizer.convert_tokens_to_ids(part))
                run = ""
            else:
                run += part
    return tuple(ids + _plain(tokenizer, run))


def _plain(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True) if text else []


def _automatic_prefix(tokenizer: PreTrainedTokenizerFast) -> list[int]:
    ids: list[int] = tokenizer.encode("", add_special_tokens=True)
    return ids


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
    # Some templates strip the messages, some do not.
    for clean in (str, str.strip):
        pieces = [(part, True) if isinstance(part, str) else (clean(turns[part][1]), False) for part in frame]
        if "".join(text for text, _ in pieces) == rendered:
            return pieces
    raise ContextError("its chat template rewrites the messages, so their text cannot be told from its own")


def _render(tokenizer: PreTrainedTokenizerFast, turns: list[tuple[str, str]]) -> str:
    messages: list[dict[str, Any]] = [{"role": role, "content": text} for role, text in turns]
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    except Exception as error:  # a template may raise anything of jinja's
        raise ContextError(f"its chat template does not take these turns: {error}") from error
