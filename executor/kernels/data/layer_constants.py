"""What does not change from step to step in a layer, beside the weights of its matrix products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

Activation = Literal["silu", "gelu_tanh", "relu2"]
# Those of MLPs without a gate.
UNGATED = frozenset({"relu2"})


class NormWeights(NamedTuple):
    """An RMS norm: x / sqrt(mean(x²) + epsilon) · weight, float32 [d]."""

    weight: torch.Tensor
    epsilon: float


class Addition(NamedTuple):
    """How a product joins the residual stream h: h += scale · norm(product + bias).

    `bias` float32 [d] and `norm` are None where they are left out.
    """

    bias: torch.Tensor | None
    norm: NormWeights | None
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class HeadConstants:
    """What becomes of the `heads` queries, the `kv_heads` keys and as many values of a token, each `dim` wide.

    bias:    float32 [(heads + 2 · kv_heads) · dim], or None
    norms:   float32 [heads + kv_heads, dim], the weights of the RMS norms of queries and keys, or None
    epsilon: of these norms
    whole:   whether the mean is taken over all queries, and over all keys, not over each head
    """

    heads: int
    kv_heads: int
    dim: int
    bias: torch.Tensor | None = None
    norms: torch.Tensor | None = None
    epsilon: float = 0.0
    whole: bool = False

    @property
    def width(self) -> int:
        """Numbers of a token's queries, keys and values."""
        return (self.heads + 2 * self.kv_heads) * self.dim
