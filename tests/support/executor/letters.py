"""Tiny models whose letters are spread over tokens, of a byte-level and of a byte-fallback vocabulary.

Their weights are random, of a seed, with a leaning to go on with a letter that is begun: they mostly write letters, and
some bytes that are none.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

KINDS = ("byte_level", "byte_fallback")
# What the models write.
LETTERS = ("a", "b", " ", ".", "é", "🙂", "中", "\u0301")
_SPECIAL = ("<unk>", "<s>", "</s>")
EOS = 2
# Tokens that end in the middle of a letter, or begin there, and such that are more than one letter.
_CUT = (b" \xf0\x9f", b"\x99\x82b", b"\xa9a", b"b\xe4", b"\xb8\xad", b"ab")
_PIECES = ("▁", "▁a", "a", "b", "ab", ".", "é")
_TEMPLATE = (
    "{% for message in messages %}<s>{{ message['role'] }}: {{ message['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant:{% endif %}"
)


def _characters() -> list[str]:
    """The character for each byte in GPT-2's vocabulary."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in shown]
    return [chr(byte if byte in shown else 256 + rest.index(byte)) for byte in range(256)]


@cache
def bytes_of(kind: str) -> tuple[bytes, ...]:
    """The bytes of each token by its id; none of special ones. A byte-fallback piece begins with a space for ▁."""
    singles = [bytes([byte]) for byte in range(256)]
    more = _CUT if kind == "byte_level" else [piece.replace("▁", " ").encode() for piece in _PIECES]
    return (*[b""] * len(_SPECIAL), *singles, *more)


@cache
def tokenizer(kind: str) -> PreTrainedTokenizerFast:
    if kind == "byte_level":
        characters = _characters()
        names = ["".join(characters[byte] for byte in data) for data in bytes_of(kind)[len(_SPECIAL) :]]
        vocabulary = {name: id for id, name in enumerate([*_SPECIAL, *names])}
        backend = Tokenizer(models.BPE(vocabulary, []))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
    else:
        names = [f"<0x{byte:02X}>" for byte in range(256)]
        vocabulary = {name: id for id, name in enumerate([*_SPECIAL, *names, *_PIECES])}
        merges = [("▁", "a"), ("a", "b")]
        backend = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
        backend.pre_tokenizer = pre_tokenizers.Metaspace()
        backend.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in _SPECIAL])
    made = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    made.chat_template = _TEMPLATE
    return made


def text_of(kind: str, tokens: Sequence[int]) -> str:
    """The text of tokens, by their bytes alone.

    What is no letter is U+FFFD: for all bytes of one that is cut off, or for each byte of a byte-fallback vocabulary.
    """
    data = b"".join(bytes_of(kind)[token] for token in tokens)
    if kind == "byte_level":
        return data.decode("utf-8", "replace")
    text = "".join(
        "\ufffd" if "\udc80" <= sign <= "\udcff" else sign for sign in data.decode("utf-8", "surrogateescape")
    )
    return text.removeprefix(" ")


def _follows(kind: str) -> set[tuple[int, int]]:
    """Tokens, each with one that likely comes after it."""
    ids = {data: id for id, data in enumerate(bytes_of(kind)) if data}
    singles = [[ids[bytes([byte])] for byte in letter.encode()] for letter in LETTERS]
    ways = [*singles, *([ids[letter.encode()]] for letter in LETTERS if letter.encode() in ids)]
    pairs = [pair for way in ways for pair in pairwise(way)]
    pairs += [(way[-1], other[0]) for way in ways for other in ways]
    if kind == "byte_level":
        wide = {data: ids[data] for data in _CUT}
        nines, b8 = ids[b"\x9f"], ids[b"\xe4"]
        pairs += [(nines, wide[b"\x99\x82b"]), (ids[b"\xc3"], wide[b"\xa9a"]), (b8, wide[b"\xb8\xad"])]
        pairs += [(way[-1], wide[data]) for way in ways for data in (b" \xf0\x9f", b"b\xe4")]
        pairs += [(wide[b" \xf0\x9f"], ids[b"\x99"]), (wide[b"b\xe4"], wide[b"\xb8\xad"])]
    return {*pairs, (ids[b"."], EOS)}


def save(kind: str, folder: Path, seed: int = 0) -> str:
    """Writes the model of a kind and a seed into a folder; its name in programs."""
    torch.manual_seed(seed)
    width = 64
    config = LlamaConfig(
        vocab_size=len(bytes_of(kind)),
        hidden_size=width,
        intermediate_size=width,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
        bos_token_id=1,
        eos_token_id=EOS,
        pad_token_id=None,
        tie_word_embeddings=False,
        initializer_range=0.1,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        tokens = model.model.embed_tokens.weight.normal_()
        head = model.lm_head.weight.normal_(std=0.02)
        for one, two in sorted(_follows(kind)):
            head[two] += 11.0 * tokens[one] / width
    model.generation_config.eos_token_id = EOS
    model.save_pretrained(folder)
    tokenizer(kind).save_pretrained(folder)
    return str(folder)
