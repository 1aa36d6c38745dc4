"""LoRA adapters with random matrices in PEFT's format, and what a model computes with one that is not merged."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.nn import Embedding, Linear, Module
from torch.nn.functional import embedding, linear
from transformers import PreTrainedModel

RANK, ALPHA = 4, 6


def matrices(model: PreTrainedModel, modules: Iterable[str], rank: int = RANK) -> dict[str, torch.Tensor]:
    """Both matrices of each module, by the names that an adapter has for them."""
    generator = torch.Generator().manual_seed(0)
    made = {}
    for name in modules:
        weight, module = model.get_parameter(f"{name}.weight"), model.get_submodule(name)
        # An embedding and transformers' Conv1D have their inputs first.
        height, width = weight.shape if isinstance(module, Linear) else weight.shape[::-1]
        for matrix, shape in (("A", (rank, width)), ("B", (height, rank))):
            end = f"lora_embedding_{matrix}" if isinstance(module, Embedding) else f"lora_{matrix}.weight"
            made[f"{name}.{end}"] = torch.randn(shape, generator=generator) * 0.3
    return made


def write_adapter(folder: Path, tensors: Mapping[str, torch.Tensor], **settings: object) -> Path:
    """An adapter of `tensors`, by names without PEFT's prefix, and these settings."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": ALPHA, **settings}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    named = {f"base_model.model.{name}": tensor.clone().contiguous() for name, tensor in tensors.items()}
    save_file(named, folder / "adapter_model.safetensors", {"format": "pt"})
    return folder


def unmerged_logits(
    model: PreTrainedModel, tensors: Mapping[str, torch.Tensor], tokens: torch.Tensor, scales: Mapping[str, float]
) -> torch.Tensor:
    """The logits of a model whose modules add scale·B·A·x to what they give, with `scales` by module.

    A module with magnitudes gives magnitude / length of (W + scale·B·A)'s rows times all of that (DoRA).
    """
    handles = []
    for name, scale in scales.items():
        module = model.get_submodule(name)
        handles.append(module.register_forward_hook(_adding(name, module, tensors, scale)))
    try:
        with torch.no_grad():
            logits: torch.Tensor = model(input_ids=tokens).logits
    finally:
        for handle in handles:
            handle.remove()
    return logits


def _adding(
    name: str, module: Module, tensors: Mapping[str, torch.Tensor], scale: float
) -> Callable[[Module, tuple[torch.Tensor, ...], torch.Tensor], torch.Tensor]:
    weight: Any = module.weight

    def add(module: Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        if isinstance(module, Embedding):
            a, b = tensors[f"{name}.lora_embedding_A"], tensors[f"{name}.lora_embedding_B"]
            # Some models multiply what they look up.
            return output + embedding(inputs[0], a.T) @ b.T * scale * getattr(module, "embed_scale", 1)
        a, b = tensors[f"{name}.lora_A.weight"], tensors[f"{name}.lora_B.weight"]
        output = output + linear(linear(inputs[0], a), b, tensors.get(f"{name}.lora_B.bias")) * scale
        magnitude = tensors.get(f"{name}.lora_magnitude_vector")
        if magnitude is None:
            return output
        bias = 0 if module.bias is None else module.bias
        return magnitude / (weight + scale * b @ a).norm(dim=1) * (output - bias) + bias

    return add
