"""What depends on positions, and not on one alone or not on those that a forward is given.

Rotations with short and long factors (longrope) change for a whole text once it is longer than some length: it would
have to be read again at that token. So texts end there, and the short factors serve all of them. Llama 4 scales its
queries by a position that the module counts from the length of its cache.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from qpdsl.executor.engine.model.adapters.attend import QUERY_SCALE, Attend

if TYPE_CHECKING:
    from transformers import PretrainedConfig

LONGROPE = "longrope"


def short_positions(config: PretrainedConfig) -> int | None:
    """The most tokens of a text for which factors are short; None where there are no others."""
    rope: dict[str, Any] = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kinds = [rope, *(value for value in rope.values() if isinstance(value, dict))]
    limits = [
        kind.get("original_max_position_embeddings") or getattr(config, "original_max_position_embeddings", None)
        for kind in kinds
        if kind.get("rope_type", kind.get("type")) == LONGROPE
    ]
    return min((int(limit) for limit in limits if limit), default=None)


def keep_short(module: Any) -> None:
    """Has a module of rotations keep its short factors: it looks at its longest text no more."""
    kind = getattr(module, "rope_type", None)
    if type(module).__name__ == "PhimoeRotaryEmbedding":
        # It makes its frequencies anew in each forward.
        made = module.rope_init_fn(module.config)
        module.rope_init_fn = lambda *settings: made
    if kind == LONGROPE:
        module.rope_type = "default"
        module.inv_freq = torch.nn.Buffer(module.original_inv_freq.clone(), persistent=False)
    elif isinstance(kind, dict) and LONGROPE in kind.values():
        raise LookupError("only some of its layers have long factors")


def _llama4(module: Any, attend: Attend) -> None:
    if module.attn_temperature_tuning and not module.use_rope:
        module.attn_temperature_tuning = False
        scale = partial(_temperature, floor=float(module.floor_scale), factor=float(module.attn_scale))
        setattr(module, QUERY_SCALE, scale)


def _temperature(positions: torch.Tensor, floor: float, factor: float) -> torch.Tensor:
    """Grows with the logarithm of the position (Nakanishi, "Scalable-Softmax", 2025): float32 [T]."""
    return torch.log1p(torch.floor((positions.float() + 1.0) / floor)) * factor + 1.0


ADAPTERS = {"Llama4TextAttention": _llama4}
