"""EAGLE heads in the format in which they are published: a configuration of a Llama of one layer, and its weights."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file, save_file

from qpdsl.executor.checkpoint.errors import CheckpointError, ModelError
from qpdsl.executor.checkpoint.model_folder import content, is_there
from qpdsl.executor.checkpoint.safe_files import parsed, tensor_shapes
from qpdsl.executor.engine.draft.eagle_head import EagleHead

if TYPE_CHECKING:
    from transformers import LlamaConfig

_CONFIG, _WEIGHTS = "config.json", "model.safetensors"
_OTHER_WEIGHTS = "pytorch_model.bin"
# Names that only heads of EAGLE-3 have.
_LATER = ("d2t", "t2d", "midlayer.", "layers.0.hidden_norm.")


def load_head(name: str, folder: Path, device: str, dtype: torch.dtype | None = None) -> EagleHead:
    """The head of a folder, in `dtype` or in the type that it is stored in; in float32 on a CPU.

    It has embeddings of its own where the folder has some. Raises ModelError, in which it is called `name`.
    """
    try:
        if not folder.is_dir():
            raise CheckpointError("there is no such folder")
        return _loaded(folder, dtype or (torch.float32 if device == "cpu" else None)).to(device).eval()
    except CheckpointError as error:
        raise ModelError(name, f"EAGLE head `{folder}`: {error}") from error
    except OSError as error:
        raise ModelError(name, f"EAGLE head `{folder}`: its files cannot be read: {error.strerror or error}") from error


def save_head(head: EagleHead, folder: Path) -> None:
    """Writes a head to a folder, which is made where there is none."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {**head.config.to_dict(), "num_hidden_layers": 1, "bias": head.fc.bias is not None}
    # A path of whoever trained it.
    settings.pop("_name_or_path", None)
    (folder / _CONFIG).write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")
    tensors = {name: tensor.detach().contiguous().cpu() for name, tensor in head.state_dict().items()}
    save_file(tensors, folder / _WEIGHTS, {"format": "pt"})


def _loaded(folder: Path, dtype: torch.dtype | None) -> EagleHead:
    for file in (_CONFIG, _WEIGHTS):
        if not is_there(folder, file):
            other = "; its weights are in a format that can carry code: save them as safetensors"
            has_other = file == _WEIGHTS and (folder / _OTHER_WEIGHTS).exists()
            raise CheckpointError(f"it has no {file}{other if has_other else ''}")
    config = _config(folder)
    shapes = tensor_shapes(folder / _WEIGHTS)
    if later := [name for name in shapes if name.startswith(_LATER)]:
        raise CheckpointError(f"it has `{later[0]}`, so it is one of EAGLE-3; heads of EAGLE and EAGLE-2 are known")
    head = _empty(config, shapes)
    expected = {name: tuple(tensor.shape) for name, tensor in head.state_dict().items()}
    for name, shape in expected.items():
        if name not in shapes:
            raise CheckpointError(f"its weights lack `{name}`")
        if shapes[name] != shape:
            raise CheckpointError(f"its `{name}` is {list(shapes[name])}, and its configuration says {list(shape)}")
    if unknown := sorted(shapes.keys() - expected.keys()):
        raise CheckpointError(f"its weights have `{unknown[0]}`, which a head of EAGLE has no place for")
    tensors = load_file(folder / _WEIGHTS)
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or not bool(tensor.isfinite().all()):
            raise CheckpointError(f"its `{name}` does not hold finite numbers")
    head.load_state_dict(tensors)
    return head.to(dtype or tensors["fc.weight"].dtype)


def _config(folder: Path) -> LlamaConfig:
    from transformers import LlamaConfig

    settings = parsed(_CONFIG, content(folder, _CONFIG))
    layers = settings.get("num_hidden_layers", 1)
    if layers != 1:
        raise CheckpointError(f"it has {layers} layers, and a head of EAGLE has one")
    try:
        return LlamaConfig.from_dict({**settings, "num_hidden_layers": 1})
    except Exception as error:  # whatever transformers raises for values that it does not know
        raise CheckpointError(f"its `{_CONFIG}` is not that of a Llama: {error}") from error


def _empty(config: LlamaConfig, names: Collection[str]) -> EagleHead:
    """A head with places for these tensors."""
    try:
        return EagleHead(
            config,
            embeds="embed_tokens.weight" in names,
            bias="fc.bias" in names,
            attention_bias="layers.0.self_attn.q_proj.bias" in names,
        )
    except (TypeError, ValueError, KeyError, RuntimeError, ZeroDivisionError) as error:
        raise CheckpointError(f"its `{_CONFIG}` describes no layer of a Llama: {error}") from error
