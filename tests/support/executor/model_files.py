"""Model folders: some of random weights, and some of a few bytes, for what is decided before weights are loaded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from qpdsl import zoo
from tests.support.executor.models import random_model

CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}


def weights(*names: str, fill: int = 0) -> bytes:
    """A safetensors file of float32 tensors of two numbers each, every byte of which is `fill`."""
    entries = {
        name: {"dtype": "F32", "shape": [2], "data_offsets": [8 * index, 8 * index + 8]}
        for index, name in enumerate(names)
    }
    header = json.dumps(entries).encode()
    return len(header).to_bytes(8, "little") + header + bytes([fill]) * 8 * len(names)


def index(files: Mapping[str, str]) -> str:
    """The text of an index of tensors to files."""
    return json.dumps({"metadata": {}, "weight_map": dict(files)})


def write_model(folder: Path, *, single: bool = True) -> Path:
    """A model of one weight file or, if not `single`, of two with an index."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text("{}")
    if single:
        (folder / "model.safetensors").write_bytes(weights("a", "b"))
        return folder
    (folder / "one.safetensors").write_bytes(weights("a"))
    (folder / "two.safetensors").write_bytes(weights("b"))
    (folder / "model.safetensors.index.json").write_text(index({"a": "one.safetensors", "b": "two.safetensors"}))
    return folder


def save_random(folder: Path, name: str) -> None:
    """A random-weight model of the named architecture, with the built-in tokenizer and its vocabulary."""
    model = random_model(name, vocab_size=768, pad_token_id=0)
    model.generation_config.eos_token_id = [4, 3]
    model.save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(zoo.path("zoo/counting") / file, folder / file)
