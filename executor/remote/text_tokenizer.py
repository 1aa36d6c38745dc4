"""The tokenizer of a model whose tokens only its server knows: tokens are the bytes of text, and marks of chat turns.

With it all that works on token ids here works on a black box too: contexts, `say`, stops, extraction, constraints. The
engine turns such ids back into messages, or into plain text.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from qpdsl.executor.remote.dialects.dialect import Messages

# How many ids stand for a byte each; those after them are marks.
BYTES = 256
ROLES = ("system", "user", "assistant")
_MARKS = {role: BYTES + number for number, role in enumerate(ROLES)}
END_OF_TURN = BYTES + len(ROLES)
# What a sample ends with, where the server says that its model ended it.
EOS = END_OF_TURN + 1
WIDTH = EOS + 1
# No text is so long: where only the server knows how much it takes.
UNBOUNDED = 1 << 40
_NAMES = {id: f"<|qpdsl {name}|>" for name, id in {**_MARKS, "end": END_OF_TURN, "eos": EOS}.items()}
_TEMPLATE = (
    "{% for message in messages %}"
    + "".join(
        f"{{% {'if' if role == ROLES[0] else 'elif'} message['role'] == '{role}' %}}{_NAMES[id]}"
        for role, id in _MARKS.items()
    )
    + "{% else %}{{ raise_exception('there is no role ' + message['role']) }}{% endif %}"
    + f"{{{{ message['content'] }}}}{_NAMES[END_OF_TURN]}"
    + "{% endfor %}"
    + f"{{% if add_generation_prompt %}}{_NAMES[_MARKS['assistant']]}{{% endif %}}"
)


@cache
def text_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer, made in memory. It is one object, so models on servers share what is compiled for it."""
    vocabulary = {character: byte for byte, character in enumerate(_characters())}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in _NAMES.values()])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=_NAMES[EOS])
    tokenizer.chat_template = _TEMPLATE
    return tokenizer


def _characters() -> list[str]:
    """The character that stands for each byte in a byte-level vocabulary (GPT-2), in the order of the bytes."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(BYTES) if byte not in shown]
    return [chr(byte if byte in shown else BYTES + others.index(byte)) for byte in range(BYTES)]


def is_text(tokenizer: PreTrainedTokenizerFast) -> bool:
    """Whether tokens are bytes of text, as only the server knows the model's own."""
    return tokenizer is text_tokenizer()


def tokens_of(text: str) -> tuple[int, ...]:
    """The tokens of text that a server wrote."""
    return tuple(text.encode("utf-8", "replace"))


def text_of(tokens: Sequence[int]) -> str:
    """The text of tokens, without marks; a character that is cut off becomes a replacement character."""
    return bytes(token for token in tokens if token < BYTES).decode("utf-8", "replace")


def messages_of(prompt: Sequence[int]) -> Messages | None:
    """The chat turns that a prompt stands for; None where it is plain text."""
    if not prompt or prompt[0] < BYTES:
        return None
    roles = {id: role for role, id in _MARKS.items()}
    starts = [place for place, token in enumerate(prompt) if token in roles]
    turns = []
    for start, end in zip(starts, [*starts[1:], len(prompt)], strict=True):
        turns.append((roles[prompt[start]], text_of(prompt[start + 1 : end])))
    last, text = turns[-1]
    if last == "assistant" and END_OF_TURN not in prompt[starts[-1] :]:
        return Messages(tuple(turns[:-1]), text)
    return Messages(tuple(turns))
