"""Quantized safetensors checkpoints of small models, packed here as the packages that write them do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from qpdsl import zoo
from qpdsl.executor.kernels.linear import StoredExperts
from tests.support.executor.gguf_files import family_model

# Neighbouring outputs of AWQ in the order of a word's bits.
_AWQ = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True)
class Case:
    """`layout`: a format of compressed-tensors, or "gptq", "gptq_v2", "awq", "torchao"; `group` 0 for a channel."""

    layout: str
    bits: int
    group: int
    symmetric: bool = True

    @property
    def kind(self) -> str:
        return f"int{self.bits} in groups of {self.group}" if self.group else f"int{self.bits} by channel"

    @property
    def settings(self) -> dict[str, Any]:
        """What config.json says of it."""
        if self.layout == "awq":
            known = {"quant_method": "awq", "version": "gemm", "zero_point": True, "modules_to_not_convert": None}
            return {**known, "bits": self.bits, "group_size": self.group or -1}
        if self.layout.startswith("gptq"):
            known = {"quant_method": "gptq", "checkpoint_format": self.layout, "desc_act": False, "lm_head": False}
            known |= {"sym": self.symmetric, "true_sequential": True, "meta": {"damp_percent": 0.05}}
            return {**known, "bits": self.bits, "group_size": self.group or -1}
        if self.layout == "torchao":
            groups = {"_data": {"group_size": self.group}, "_type": "PerGroup", "_version": 1}
            row = {"_data": {"dim": -1}, "_type": "PerRow", "_version": 1}
            data = {"granularity": groups if self.group else row, "group_size": None, "set_inductor_config": True}
            kind = {"_data": data, "_type": "Int8WeightOnlyConfig", "_version": 2}
            return {"quant_method": "torchao", "quant_type": {"default": kind}, "untie_embedding_weights": False}
        weights = {
            "num_bits": self.bits,
            "type": "int",
            "symmetric": self.symmetric,
            "strategy": "group" if self.group else "channel",
            "group_size": self.group or None,
            "dynamic": False,
            "actorder": None,
            "block_structure": None,
            "observer": "minmax",
            "observer_kwargs": {},
        }
        scheme = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
        return {
            "quant_method": "compressed-tensors",
            "format": self.layout,
            "quantization_status": "compressed",
            "config_groups": {"group_0": scheme},
            "ignore": ["lm_head"],
            "kv_cache_scheme": None,
            "sparsity_config": {},
            "version": "0.20.0",
        }


def write_quantized(
    folder: Path, case: Case, family: str = "llama", dtype: torch.dtype = torch.float32, **changes: Any
) -> PreTrainedModel:
    """Writes a checkpoint with its tokenizer, other weights in `dtype`, and returns the same model in float32."""
    model = family_model(family, **changes)
    model.generation_config.eos_token_id = [4]
    quantized: dict[str, torch.Tensor] = {}
    for name, module in model.named_modules():
        # A gate of one output is left as it is.
        if type(module) is torch.nn.Linear and name != "lm_head" and module.out_features > 1:
            tensors, values = _quantized(module.weight.detach(), case)
            module.weight.data = values
            quantized |= {f"{name}.{own}": tensor.contiguous() for own, tensor in tensors.items()}
        elif StoredExperts.fits(module):
            quantized |= _experts(name, module, case)
    layers = {name.rpartition(".")[0] for name in quantized}
    for name, parameter in model.named_parameters():
        if name.rpartition(".")[0] not in layers or name.endswith("bias"):
            parameter.data = parameter.data.to(dtype).float()
    model.save_pretrained(folder)
    plain = load_file(folder / "model.safetensors")
    kept = {
        name: tensor.to(dtype)
        for name, tensor in plain.items()
        if not (name.endswith(".weight") and name.removesuffix(".weight") in layers)
    }
    save_file({**kept, **quantized}, folder / "model.safetensors", metadata={"format": "pt"})
    configure(folder, quantization_config=case.settings)
    copy_tokenizer(folder)
    return model


def copy_tokenizer(folder: Path) -> None:
    """That of the built-in models."""
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(zoo.path("zoo/counting") / file, folder / file)


def _experts(name: str, module: torch.nn.Module, case: Case) -> dict[str, torch.Tensor]:
    """The tensors of experts, each with its layers apart as files have them; the module gets their values."""
    found: dict[str, torch.Tensor] = {}
    of_mixtral = type(module).__name__ == "MixtralExperts"
    names = ("w1", "w3", "w2") if of_mixtral else ("gate_proj", "up_proj", "down_proj")
    name = name.replace(".mlp.", ".block_sparse_moe.") if of_mixtral else name
    for expert, (widen, down) in enumerate(zip(module.gate_up_proj, module.down_proj, strict=True)):
        gate, up = widen.chunk(2)
        for own, weight in zip(names, (gate, up, down), strict=True):
            tensors, values = _quantized(weight.detach(), case)
            weight.data.copy_(values)
            found |= {f"{name}.{expert}.{own}.{part}": tensor.contiguous() for part, tensor in tensors.items()}
    return found


def configure(folder: Path, **settings: Any) -> None:
    """Changes settings of config.json."""
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))


def change(folder: Path, changed: Mapping[str, torch.Tensor | None]) -> None:
    """Replaces tensors of a checkpoint; None takes them out."""
    file = folder / "model.safetensors"
    tensors = {**load_file(file), **changed}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, file, metadata={"format": "pt"})


def _quantized(weight: torch.Tensor, case: Case) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """The tensors of a layer, and the weights [out, in] that they stand for."""
    outputs, inputs = weight.shape
    levels, half = (1 << case.bits) - 1, 1 << (case.bits - 1)
    groups = weight.view(outputs, -1, case.group or inputs)
    low, high = groups.amin(2).clamp(max=0), groups.amax(2).clamp(min=0)
    if case.symmetric:
        scales = (torch.maximum(high, -low) * 2 / levels).half().float()
        zeros = torch.full_like(scales, half)
    else:
        scales = ((high - low) / levels).half().float()
        zeros = (-low / scales).round().clamp(1, levels)
    codes = (groups / scales[..., None] + zeros[..., None]).round().clamp(0, levels)
    values = ((codes - zeros[..., None]) * scales[..., None]).view(outputs, inputs)
    codes, zeros = codes.view(outputs, inputs).long(), zeros.long()
    per_word = 32 // case.bits
    if case.layout == "pack-quantized":
        tensors = {
            "weight_packed": _words(codes, case.bits),
            "weight_scale": scales.half(),
            "weight_shape": torch.tensor([outputs, inputs]),
        }
        points = _words(torch.nn.functional.pad(zeros.T, (0, -outputs % per_word)), case.bits).T
        return tensors | ({} if case.symmetric else {"weight_zero_point": points}), values
    if case.layout == "torchao":
        points = (zeros - half).to(torch.int8)
        own = {"qdata": (codes - half).to(torch.int8), "scale": scales, "zero_point": points}
        return {f"_weight_{name}": tensor for name, tensor in own.items()}, values
    if case.layout.endswith("-quantized"):
        tensors = {"weight": (codes - half).to(torch.int8), "weight_scale": scales.half()}
        return tensors | ({} if case.symmetric else {"weight_zero_point": (zeros - half).to(torch.int8)}), values
    if case.layout == "awq":
        order = torch.tensor(_AWQ)
        packed, points = (
            _words(part.T.reshape(part.shape[1], -1, 8)[..., order].flatten(1), case.bits) for part in (codes, zeros)
        )
        return {"qweight": packed, "qzeros": points, "scales": scales.half().T}, values
    index = torch.arange(inputs, dtype=torch.int32) // (case.group or inputs)
    stored = zeros - int(case.layout == "gptq")
    parts = {"qweight": _words(codes, case.bits).T, "qzeros": _words(stored.T, case.bits)}
    return {**parts, "scales": scales.half().T, "g_idx": index}, values


def _words(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """int32 [n, m · bits / 32] of codes int64 [n, m]; the first is in the lowest bits."""
    count = 32 // bits
    words = sum(codes[:, place::count] << (bits * place) for place in range(count))
    assert isinstance(words, torch.Tensor)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)
