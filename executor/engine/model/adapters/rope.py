"""Position encodings with short and long factors, which change for a whole text once it is longer than some length.

A text would have to be read again at that token. So texts end there, and the short factors serve all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

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
