"""Files that are written for llama.cpp hold the model: read as any GGUF file, they give its weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import CONFIG_MAPPING

from qpdsl.executor.checkpoint.gguf_families import GGUFModel
from qpdsl.executor.models.gguf_model import built
from tests.support.executor.families import Family, tiny

pytest.importorskip("gguf", reason="the files are written with the package gguf")


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3_5_text"])
def test_a_written_file_holds_the_model(kind: str, tmp_path: Path) -> None:
    from benchmarks.peers.gguf_file import write_gguf

    model = tiny(Family(kind, {"num_hidden_layers": 4}))
    write_gguf(model, tmp_path / "m.gguf", [f"<{id}>" for id in range(model.config.vocab_size)])
    gguf = GGUFModel.of(tmp_path / "m.gguf")
    settings = dict(gguf.config)
    read = built(gguf, CONFIG_MAPPING[settings.pop("model_type")](**settings), torch.float32, "cpu").state_dict()
    own = model.state_dict()
    assert read.keys() == own.keys()
    for name, tensor in own.items():
        assert torch.allclose(read[name], tensor, atol=1e-6), name
