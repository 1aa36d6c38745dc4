"""Checkpoints that come quantized: which are loaded, and which would not give what they should.

transformers reads them with the package that wrote them; what a row of their layers comes to must not hang on the other
rows, or a sample would change with whatever else is in its batch.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

_ROWS = 16
# Larger than the numbers that quantizers set apart (LLM.int8 does from 6 on), and than any scale of the other rows.
_LARGE = 1000.0


def unknown_method(config: PretrainedConfig) -> str | None:
    """The quantization that transformers does not know, None where it knows it or there is none.

    It would take the stored numbers for weights.
    """
    found: Any = getattr(config, "quantization_config", None)
    if found is None:
        return None
    given = found if isinstance(found, dict) else found.to_dict()
    if given.get("load_in_8bit") or given.get("load_in_4bit"):
        return None
    method = str(getattr(given.get("quant_method"), "value", given.get("quant_method")))
    return None if method in AUTO_QUANTIZATION_CONFIG_MAPPING else method


@torch.inference_mode()
def mixed_rows(model: PreTrainedModel) -> str | None:
    """Why a row's result hangs on the other rows of its batch, by a linear layer; None where no layer mixes rows.

    One layer of each type and shape is tried; those that hold nothing, as they were laid out anew, are not.
    """
    tried = set[tuple[Any, ...]]()
    for module in model.modules():
        width = getattr(module, "in_features", None)
        held = [each for each in (*module.parameters(recurse=False), *module.buffers(recurse=False)) if each.numel()]
        if not isinstance(width, int) or not held:
            continue
        kind = (type(module), type(held[0]), width, getattr(module, "out_features", None))
        if kind not in tried and _mixes(module, width, model.dtype, held[0].device):
            name = type(module).__name__
            hint = " (they do not where its llm_int8_threshold is 0)" if name == "Linear8bitLt" else ""
            return f"what its {name} layers make of a token hangs on what else is in the batch{hint}"
        tried.add(kind)
    return None


def _mixes(layer: torch.nn.Module, width: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the first half of some rows comes to something else where the second half is large."""
    rows = torch.randn(_ROWS, width, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    others = rows.clone()
    others[_ROWS // 2 :] *= _LARGE
    half = slice(_ROWS // 2)
    return not torch.equal(layer(rows)[half], layer(others)[half])
