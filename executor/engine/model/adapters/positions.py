"""Queries that are scaled by their position, which the module counts from the length of its cache (Llama 4)."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from qpdsl.executor.engine.model.adapters.attend import QUERY_SCALE, Attend


def _llama4(module: Any, attend: Attend) -> None:
    if module.attn_temperature_tuning and not module.use_rope:
        module.attn_temperature_tuning = False
        scale = partial(_temperature, floor=float(module.floor_scale), factor=float(module.attn_scale))
        setattr(module, QUERY_SCALE, scale)


def _temperature(positions: torch.Tensor, floor: float, factor: float) -> torch.Tensor:
    """Grows with the logarithm of the position (Nakanishi, "Scalable-Softmax", 2025): float32 [T]."""
    return torch.log1p(torch.floor((positions.float() + 1.0) / floor)) * factor + 1.0


ADAPTERS = {"Llama4TextAttention": _llama4}
