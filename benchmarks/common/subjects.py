"""The models that `engine.real` measures: real ones, and a random one of half a billion parameters.

A subject has a folder of weights for each type of floats, and a GGUF file for the quantized ones. llama.cpp reads GGUF
files alone: those with floats are made of the quantized file's values, and kept beside it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from benchmarks.common.folders import ROOT
from benchmarks.common.real_models import GEMMA3, SMOLLM2
from benchmarks.common.shapes import HALF, half_billion, random_prompts
from benchmarks.peers.peer import Tokens

FLOAT32, BFLOAT16, QUANTIZED = "float32", "bfloat16", "quantized"
DTYPES = (FLOAT32, BFLOAT16, QUANTIZED)
_ITEM_BYTES = {FLOAT32: 4, BFLOAT16: 2}
_GGUF_TYPES = {FLOAT32: "F32", BFLOAT16: "BF16"}
_PROSE = ("docs/**/*.md", "grammar/explanations/*.md")


class Missing(Exception):
    """A file that is not there, with what makes it."""


@dataclass(frozen=True)
class Subject:
    """Where a model's weights are; `prose`: it has a tokenizer that prompts of prose can be made with."""

    name: str
    float32: Path
    bfloat16: Path
    quantized: Path
    prose: bool = True

    def weights(self, dtype: str, gguf: bool) -> Path:
        """The folder or, for llama.cpp and for quantized weights, the GGUF file; made if it can be. Raises Missing."""
        if dtype == QUANTIZED:
            return _there(self.quantized)
        if not gguf:
            return _there(self.float32 if dtype == FLOAT32 else self.bfloat16)
        kind = _GGUF_TYPES[dtype]
        file = self.quantized.with_name(f"{self.float32.name}.{kind}.gguf")
        if not file.exists():
            from gguf import GGMLQuantizationType

            from benchmarks.peers.gguf_file import recoded

            # The random model was quantized after its floats were made, the real ones before.
            source = self.floats if self.floats.exists() else _there(self.quantized)
            part = file.with_suffix(".part")
            recoded(source, part, GGMLQuantizationType[kind])
            part.rename(file)
        return file

    @property
    def floats(self) -> Path:
        """The GGUF file in float32, which may not be there yet."""
        return self.quantized.with_name(f"{self.float32.name}.F32.gguf")

    @property
    def config(self) -> dict[str, Any]:
        config: dict[str, Any] = json.loads((_there(self.float32) / "config.json").read_text(encoding="utf-8"))
        return config

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds of a token: one for each weight of a matrix, the embeddings aside unless they are the head."""
        matrices = {name: shape for name, shape in _shapes(_there(self.float32)) if len(shape) == 2}
        apart = any(name.startswith("lm_head.") for name in matrices)
        return sum(math.prod(shape) for name, shape in matrices.items() if not (apart and "embed_tokens" in name))

    def step_bytes(self, dtype: str) -> int:
        """Bytes of weights that a decode step must read, however many rows it has."""
        if dtype == QUANTIZED:
            from benchmarks.peers.gguf_file import matrix_bytes

            return matrix_bytes(_there(self.quantized))
        return self.multiply_adds * _ITEM_BYTES[dtype]

    @property
    def token_bytes(self) -> int:
        """Bytes of keys and values of a token in float32."""
        config = self.config
        heads = config["num_attention_heads"]
        dim = config.get("head_dim") or config["hidden_size"] // heads
        return 8 * int(config["num_hidden_layers"]) * int(config.get("num_key_value_heads", heads)) * int(dim)

    def prompts(self, count: int, length: int) -> Tokens:
        """`count` prompts of `length` tokens each: consecutive pieces of prose, or ids drawn evenly."""
        if not self.prose:
            return random_prompts(count, length, int(self.config["vocab_size"]))
        ids = _prose(_there(self.float32))
        if len(ids) < count * length:
            ids = ids * math.ceil(count * length / len(ids))
        return [tuple(ids[start : start + length]) for start in range(0, count * length, length)]


def subjects(folder: Path) -> dict[str, Subject]:
    """All of them, with their files in `folder`, whether these are there or not."""
    real = {"SmolLM2-135M": SMOLLM2, "Gemma-3-270M": GEMMA3}
    found = {
        name: Subject(name, folder / f"{model.dense}-f32", folder / f"{model.dense}-bf16", folder / model.file)
        for name, model in real.items()
    }
    half = (folder / name for name in ("half-billion-f32", "half-billion-bf16", "half-billion-Q8_0.gguf"))
    return {**found, HALF: Subject(HALF, *half, prose=False)}


def make_half_billion(subject: Subject) -> None:
    """Writes the random model's files where they are not: 2 GB in float32, 1 GB in bfloat16, 0.5 GB in eight bits."""
    from gguf import GGMLQuantizationType

    from benchmarks.peers.gguf_file import recoded, write_gguf

    made = (subject.float32 / "config.json", subject.bfloat16 / "config.json", subject.quantized)
    if all(file.exists() for file in made):
        return
    subject.float32.parent.mkdir(parents=True, exist_ok=True)
    model = half_billion()
    tokenizer = bytes_tokenizer(model.config.vocab_size)
    for folder, dtype in ((subject.float32, torch.float32), (subject.bfloat16, torch.bfloat16)):
        model.to(dtype).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    write_gguf(half_billion(), subject.floats, tokenizer.convert_ids_to_tokens(range(model.config.vocab_size)))
    recoded(subject.floats, subject.quantized, GGMLQuantizationType.Q8_0)


def bytes_tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """A token for each byte, one for two of the first byte, and names without a meaning for the other ids."""
    alphabet = sorted(ByteLevel.alphabet())
    # llama.cpp does not read a tokenizer that merges nothing.
    merge = (alphabet[0], alphabet[0])
    names = [*alphabet, "".join(merge), *(f"<{number}>" for number in range(vocabulary - 257))]
    model = Tokenizer(BPE({name: number for number, name in enumerate(names)}, [merge]))
    model.pre_tokenizer = ByteLevel(add_prefix_space=False)
    return PreTrainedTokenizerFast(tokenizer_object=model)


def _there(path: Path) -> Path:
    if not path.exists():
        raise Missing(f"{path.name} is not in the folder of models: `python -m benchmarks.common.real_models` makes it")
    return path


def _shapes(folder: Path) -> Iterator[tuple[str, list[int]]]:
    """Names and shapes of a folder's tensors, from the heads of its files."""
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as opened:
            head = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
        yield from ((name, entry["shape"]) for name, entry in head.items() if name != "__metadata__")


@cache
def _prose(folder: Path) -> list[int]:
    """This checkout's pages, as the folder's tokenizer has them."""
    files = [file for pattern in _PROSE for file in sorted(ROOT.glob(pattern))]
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    ids: list[int] = AutoTokenizer.from_pretrained(folder)(text, add_special_tokens=False)["input_ids"]
    return ids
