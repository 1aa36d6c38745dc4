"""Quantized checkpoints: which methods transformers can read, and which layers make rows depend on each other."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

from qpdsl.executor.models.quantized_model import METHOD

# The rows by which a layer is tried for mixing them.
_ROWS = 16
# Larger than the numbers that quantizers set apart (LLM.int8 does from 6 on), and than any scale of the other rows.
_LARGE = 1000.0


def unknown_method(config: PretrainedConfig) -> str | None:
    """The quantization method that transformers does not know; None where it knows it or there is none.

    Transformers would take the stored numbers for weights.
    """
    quantization: Any = getattr(config, "quantization_config", None)
    if quantization is None:
        return None
    options = quantization if isinstance(quantization, dict) else quantization.to_dict()
    if options.get("load_in_8bit") or options.get("load_in_4bit"):
        return None
    method = str(getattr(options.get("quant_method"), "value", options.get("quant_method")))
    return None if method in AUTO_QUANTIZATION_CONFIG_MAPPING and method != METHOD else method


@torch.inference_mode()
def mixed_rows(model: PreTrainedModel) -> str | None:
    """Which linear layers make a row's result depend on the other rows of its batch, in words; None where none does.

    One layer of each type and shape is tried. Layers whose weights were laid out elsewhere are not.
    """
    tried = set[tuple[Any, ...]]()
    for module in model.modules():
        width = getattr(module, "in_features", None)
        stored = (*module.parameters(recurse=False), *module.buffers(recurse=False))
        tensors = [tensor for tensor in stored if tensor.numel()]
        weight = getattr(module, "weight", None)
        emptied = isinstance(weight, torch.Tensor) and not weight.numel()
        if not isinstance(width, int) or not tensors or emptied:
            continue
        kind = (type(module), type(tensors[0]), width, getattr(module, "out_features", None))
        if kind not in tried and _mixes(module, width, model.dtype, tensors[0].device):
            name = type(module).__name__
            hint = " (they do not where its llm_int8_threshold is 0)" if name == "Linear8bitLt" else ""
            return f"what its {name} layers make of a token depends on what else is in the batch{hint}"
        tried.add(kind)
    return None


def _mixes(layer: torch.nn.Module, width: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the results of the first half of some rows change where the second half is large."""
    rows = torch.randn(_ROWS, width, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    others = rows.clone()
    others[_ROWS // 2 :] *= _LARGE
    half = slice(_ROWS // 2)
    return not torch.equal(layer(rows)[half], layer(others)[half])
