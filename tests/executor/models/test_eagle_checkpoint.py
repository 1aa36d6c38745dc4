"""EAGLE heads are read from folders in their published format, and refused with a reason where they are not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig

from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.engine.draft.eagle_head import EagleHead
from qpdsl.executor.models.eagle_checkpoint import load_head, save_head
from tests.support.executor.models import CONFIGS


def head_of(**options: bool) -> EagleHead:
    torch.manual_seed(3)
    return EagleHead(LlamaConfig.from_dict(CONFIGS["llama"].to_dict()), **options)


@pytest.mark.parametrize("options", [{}, {"embeds": True}, {"bias": False}, {"attention_bias": True}])
def test_a_head_that_was_saved_predicts_the_same(options: dict[str, bool], tmp_path: Path) -> None:
    head = head_of(**options)
    save_head(head, tmp_path / "head")
    loaded = load_head("head", tmp_path / "head", "cpu")
    embedded, features = torch.randn(1, 7, 48), torch.randn(1, 7, 48)
    assert torch.equal(head(embedded, features), loaded(embedded, features))
    assert (loaded.embed_tokens is not None) == options.get("embeds", False)


def test_the_weights_have_their_published_names(tmp_path: Path) -> None:
    save_head(head_of(embeds=True), tmp_path)
    layer = "layers.0"
    assert set(load_file(tmp_path / "model.safetensors")) == {
        "embed_tokens.weight",
        "fc.weight",
        "fc.bias",
        *(f"{layer}.self_attn.{part}_proj.weight" for part in "qkvo"),
        *(f"{layer}.mlp.{part}_proj.weight" for part in ("gate", "up", "down")),
        f"{layer}.post_attention_layernorm.weight",
    }


def edit_config(folder: Path, **settings: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


def edit_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "has no model.safetensors"),
    "a pickle": (
        lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"),
        "save them as safetensors",
    ),
    "two layers": (lambda folder: edit_config(folder, num_hidden_layers=2), "it has 2 layers"),
    "another width": (lambda folder: edit_config(folder, intermediate_size=80), "configuration says"),
    "no numbers": (lambda folder: edit_config(folder, hidden_size="wide"), "config.json"),
    "no heads": (lambda folder: edit_config(folder, num_attention_heads=0), "config.json"),
    "an unknown activation": (lambda folder: edit_config(folder, hidden_act="none such"), "config.json"),
    "a weight is missing": (lambda folder: edit_weights(folder, lambda tensors: tensors.pop("fc.weight")), "lack"),
    "a norm too many": (
        lambda folder: edit_weights(folder, lambda t: t.update({"layers.0.input_layernorm.weight": torch.ones(48)})),
        "no place for",
    ),
    "EAGLE-3": (lambda folder: edit_weights(folder, lambda t: t.update({"d2t": torch.ones(8)})), "EAGLE-3"),
    "not a number": (
        lambda folder: edit_weights(folder, lambda t: t.update({"fc.bias": torch.full((48,), float("nan"))})),
        "finite",
    ),
    "half a file": (lambda folder: (folder / "model.safetensors").write_bytes(b"{}"), "safetensors"),
}


@pytest.mark.parametrize(("damage", "reason"), DAMAGES.values(), ids=DAMAGES)
def test_what_is_no_head_is_refused_with_a_reason(
    damage: Callable[[Path], object], reason: str, tmp_path: Path
) -> None:
    save_head(head_of(), tmp_path)
    damage(tmp_path)
    with pytest.raises(ModelError, match=reason):
        load_head("head", tmp_path, "cpu")


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such folder"):
        load_head("head", tmp_path / "nowhere", "cpu")
