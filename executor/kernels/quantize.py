"""Keys and values in eight bits: int8 or e4m3, with one float32 scale for each token and head.

The scale maps the largest magnitude of a head's vector to the largest number of the format (as in KVQuant, Hooper et
al., NeurIPS 2024, section 3, and vLLM's per-head scales; a scale per token needs no calibration and no second pass).
"""

from __future__ import annotations

import torch

from qpdsl.executor.kernels.rows import Kind

# The largest magnitudes. e4m3 has no infinity; 448 is its largest finite number.
LARGEST = {"int8": 127.0, "fp8": 448.0}
# Below this a vector is taken for zero: the reciprocal of its scale would overflow.
SMALLEST = 1e-30


def encode(values: torch.Tensor, kind: Kind) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantizes `values` [..., D]: bytes uint8 [..., D] and scales float32 [...], rounding half to even."""
    wide = values.float()
    largest = wide.abs().amax(dim=-1)
    zero = largest < SMALLEST
    safe = torch.where(zero, torch.ones_like(largest), largest)
    # Tensors, both: with a number on one side torch may multiply by a reciprocal, which rounds twice.
    bound = torch.full_like(safe, LARGEST[kind])
    scale = torch.where(zero, torch.zeros_like(largest), safe / bound)
    inverse = torch.where(zero, torch.zeros_like(largest), bound / safe)
    scaled = (wide * inverse[..., None]).clamp(-LARGEST[kind], LARGEST[kind])
    if kind == "int8":
        return scaled.round().to(torch.int8).view(torch.uint8), scale
    return scaled.to(torch.float8_e4m3fn).view(torch.uint8), scale


def decode(data: torch.Tensor, scale: torch.Tensor, kind: Kind) -> torch.Tensor:
    """What `encode` stored, as float32 [..., D]."""
    wide = data.view(torch.int8 if kind == "int8" else torch.float8_e4m3fn).float()
    return wide * scale[..., None]
