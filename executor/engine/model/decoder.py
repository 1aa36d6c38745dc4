"""A decoder-only model as plain data: what its layers compute, without transformers' modules.

`families.py` reads it off a transformers model; a stack runs it. All tensors are float32 but the weights of the
products, which stay as the checkpoint has them.

A layer, over the residual stream h:

    a = attention(before_attention(h));  h += residual_scale · after_attention(a)
    m = mlp(before_mlp(h));              h += residual_scale · after_mlp(m)

A norm that is None is left out. `attention` projects to queries, keys and values, adds their biases, normalizes them
where there are norms, rotates queries and keys, attends, and projects back; `mlp` is down(act(gate) · up).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from qpdsl.executor.kernels.data.layer_constants import Activation
from qpdsl.executor.kernels.data.weights import Weight


@dataclass(frozen=True, slots=True)
class Projection:
    """A linear layer: y = x·Wᵀ + b, with `bias` float32 [out] or None."""

    weight: Weight
    bias: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Norm:
    """RMS norm: x / sqrt(mean(x²) + epsilon) · weight, float32 [n]."""

    weight: torch.Tensor
    epsilon: float


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """RMS norms of queries and keys before they are rotated.

    weight: float32 [fold + 1, kv_heads, dim], the weights of the query heads in the order of `Attention`, then of the
            key heads
    whole:  whether the mean is taken over all query heads, and over all key heads (OLMo 2), not over each head
    """

    weight: torch.Tensor
    epsilon: float
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention of `fold` query heads to each KV head.

    joined:   projects to the queries [fold, kv_heads, dim], the keys and the values, both [kv_heads, dim]. Query head
              number g of KV head k of the model, which is head k · fold + g there, comes at [g, k]. Within a query or a
              key the two numbers of a pair that is rotated together are neighbours; what is not rotated comes last
    out:      projects back from [fold, kv_heads, dim]
    norms:    of queries and keys, in the order of `joined`; None for none
    rotation: which of `Decoder.rotations` turns this layer's pairs; None for none (NoPE)
    window:   a query sees the last `window` positions, itself included; None for all
    softcap:  c maps scores s to c·tanh(s/c); None for none
    """

    joined: Projection
    out: Projection
    norms: HeadNorms | None
    rotation: int | None
    scale: float
    window: int | None
    softcap: float | None = None


@dataclass(frozen=True, slots=True)
class GatedMlp:
    """down(act(gate(x)) · up(x)).

    `widen` projects to the gate [intermediate] and then `up` [intermediate].
    """

    widen: Projection
    down: Projection
    activation: Activation


@dataclass(frozen=True, slots=True)
class Layer:
    """See the head of this file."""

    attention: Attention
    mlp: GatedMlp
    before_attention: Norm | None
    after_attention: Norm | None
    before_mlp: Norm | None
    after_mlp: Norm | None


@dataclass(frozen=True, slots=True)
class HeadCounts:
    """`fold` query heads for each of `kv_heads`, each `dim` wide, of which `rotated` numbers are turned."""

    fold: int
    kv_heads: int
    dim: int
    rotated: int


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """What all layers have in common."""

    hidden: int
    intermediate: int
    heads: HeadCounts


class Decoder(Protocol):
    """A model. Layers are made when they are asked for, so that memory need not hold all of them twice.

    All have the same norms, with the same epsilons, and the same activation.
    """

    @property
    def shape(self) -> DecoderShape: ...

    @property
    def layers(self) -> int:
        """How many."""
        ...

    @property
    def norm(self) -> Norm:
        """The last norm, before the head."""
        ...

    @property
    def embedding_scale(self) -> float:
        """Multiplies the embeddings."""
        ...

    @property
    def residual_scale(self) -> float: ...

    def layer(self, index: int) -> Layer: ...

    def rotations(self, positions: int) -> list[torch.Tensor]:
        """Tables of the rotations of `positions` positions: cosine and sine of each pair, float32 [P, rotated / 2, 2].

        A factor that a position encoding puts on them (YaRN) is in them.
        """
        ...

    def release(self, index: int) -> None:
        """Empties the modules that a layer was made from, once its weights are laid out elsewhere."""
        ...
