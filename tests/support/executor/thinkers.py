"""Tiny models that think before they answer, of random weights: what they write is letters that are spread over tokens.

`OPENS`: the template opens the thought, and marks are special tokens. `WRITES`: so they are, and the model opens it, or
does not. `LETTERS`: the marks are letters like any other, as a program says that they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from tokenizers import AddedToken
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.support.executor import letters

Kind = Literal["opens", "writes", "letters"]
KINDS: tuple[Kind, ...] = ("opens", "writes", "letters")
MARKS = ("<think>", "</think>")
_ASSISTANT = "{% if message.reasoning_content %}<think>\n{{ message.reasoning_content }}\n</think>\n\n{% endif %}"
_TEMPLATE = (
    "{% for message in messages %}<s>{{ message['role'] }}: "
    f"{_ASSISTANT}{{{{ message['content'] }}}}</s>{{% endfor %}}"
    "{% if add_generation_prompt %}<s>assistant:{% if enable_thinking is defined and not enable_thinking %}"
    "<think>\n\n</think>\n\n{% else %}OPENS{% endif %}{% endif %}"
)
# What comes after what, by the bytes of tokens and the marks, besides what letters do.
_FOLLOWS = ((b".", MARKS[1]), (b"b", MARKS[1]), (MARKS[1], b"a"), (MARKS[1], b" "), (MARKS[0], b"a"), (MARKS[0], b"b"))


def save(kind: Kind, folder: Path) -> str:
    """Writes a model into a folder; its id in programs, which says how one of letters thinks."""
    letters.save("byte_level", folder)
    if kind == "letters":
        return f"{folder} think=é|.b"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([AddedToken(mark, special=True, normalized=False) for mark in MARKS], special_tokens=True)
    tokenizer.chat_template = _TEMPLATE.replace("OPENS", "<think>\n" if kind == "opens" else "")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    ids = {data: id for id, data in enumerate(letters.bytes_of("byte_level")) if data}
    torch.manual_seed(1)
    with torch.no_grad():
        width = model.config.hidden_size
        tokens, head = model.model.embed_tokens.weight, model.lm_head.weight
        for mark in MARKS:
            tokens[tokenizer.convert_tokens_to_ids(mark)].normal_()
            head[tokenizer.convert_tokens_to_ids(mark)].normal_(std=0.02)
        colon = ids[b":"]
        pairs = [(_id(tokenizer, one, ids), _id(tokenizer, two, ids)) for one, two in _FOLLOWS]
        for one, two in [*pairs, (colon, tokenizer.convert_tokens_to_ids(MARKS[0])), (colon, ids[b"a"])]:
            head[two] += 12.0 * tokens[one] / width
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def _id(tokenizer: object, what: bytes | str, ids: dict[bytes, int]) -> int:
    if isinstance(what, bytes):
        return ids[what]
    return int(tokenizer.convert_tokens_to_ids(what))  # type: ignore[attr-defined]


def parted(folder: str, tokens: Sequence[int], *, inside: bool) -> tuple[str | None, str]:
    """Thought and answer of a turn whose marks are special tokens, found by splitting at them."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    begin, end = tokenizer.convert_tokens_to_ids(list(MARKS))
    rest = list(tokens)

    def text(part: Sequence[int]) -> str:
        return str(tokenizer.decode(list(part), skip_special_tokens=True))

    if not inside:
        lead = next((at for at, token in enumerate(rest) if text([token]).strip() or token == begin), len(rest))
        if rest[lead : lead + 1] != [begin]:
            # Nothing but white space may still come before a thought.
            return ("", "") if lead == len(rest) and rest else (None, text(rest))
        rest = rest[lead + 1 :]
    if end not in rest:
        return text(rest).strip(), ""
    at = rest.index(end)
    return text(rest[:at]).strip(), text(rest[at + 1 :]).lstrip()
