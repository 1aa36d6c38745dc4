"""A decoder-only model as plain data: what its layers compute, without transformers' modules.

`families.py` reads it off a transformers model; a stack runs it. All tensors are float32 but the weights of the
products, which stay as the checkpoint has them.

A layer, over the residual stream h:

    x = before_mixer(h);     h += residual_scale · (after_mixer(attention(x)) + recurrence(x))
    m = mlp(before_mlp(h));  h += residual_scale · after_mlp(m)

A norm that is None is left out, and so is a part. Experts may be in place of `mlp`. Attention projects to queries, keys
and values, adds their biases, normalizes them where there are norms, rotates queries and keys, attends, and projects
back; a recurrence projects, goes through the tokens one after the other, and projects back. `mlp` is
down(act(gate) · up), or down(act(up)).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from qpdsl.executor.kernels.data.layer_constants import Activation
from qpdsl.executor.kernels.data.states import StateLayout, StateStep
from qpdsl.executor.kernels.data.weights import Weight, joined
from qpdsl.executor.kernels.recurrences import GatedDelta


@dataclass(frozen=True, slots=True)
class Projection:
    """A linear layer: y = (x·Wᵀ + b)·scale, with `bias` float32 [out] or None. Only those that project back scale."""

    weight: Weight
    bias: torch.Tensor | None = None
    scale: float = 1.0


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
              key the two numbers of a pair that is rotated together are neighbours; what is not rotated comes last.
              Where the layer is `gated`, gates in the order of `out` follow
    out:      projects back from [fold, kv_heads, dim]
    norms:    of queries and keys, in the order of `joined`; None for none
    rotation: which of `Decoder.rotations` turns this layer's pairs; None for none (NoPE)
    window:   a query sees the last `window` positions, itself included; None for all
    softcap:  c maps scores s to c·tanh(s/c); None for none
    gated:    what was attended is multiplied by the sigmoid of its gate
    """

    joined: Projection
    out: Projection
    norms: HeadNorms | None
    rotation: int | None
    scale: float
    window: int | None
    softcap: float | None = None
    gated: bool = False


@dataclass(frozen=True, slots=True)
class Recurrence:
    """What keeps a state of a sequence in place of keys and values.

    joined:  projects to what `between` takes, all of it side by side
    out:     projects back what it gives
    between: takes [T, n] and the step's segments, gives [T, m], both float32; or a rule that is compiled, which takes
             what is in the n numbers one after the other
    """

    joined: Projection
    out: Projection
    between: GatedDelta | Callable[[torch.Tensor, StateStep], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Mlp:
    """down(act(gate(x)) · up(x)), or down(act(up(x))).

    `widen` projects to the gate [intermediate], where there is one, and then to `up` [intermediate].
    """

    widen: Projection
    down: Projection
    activation: Activation


@dataclass(frozen=True, slots=True)
class Layer:
    """See the head of this file."""

    attention: Attention | None
    recurrence: Recurrence | None
    mlp: Mlp | None
    experts: ExpertModules | None
    before_mixer: Norm | None
    after_mixer: Norm | None
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
    """What all layers have in common, of the parts that they have.

    norms:      which of their four norms there are, in the order of `Layer`
    epsilon:    of these, and of the last norm
    head_norms: the epsilon of the norms of heads, and whether they are over all; None for none
    gate_scale: a gate of an MLP is multiplied by it before its activation
    """

    hidden: int
    intermediate: int
    heads: HeadCounts
    norms: tuple[bool, bool, bool, bool]
    epsilon: float
    activation: Activation
    head_norms: tuple[float, bool] | None = None
    softcap: float | None = None
    gated: bool = False
    gate_scale: float = 1.0


def joined_projections(parts: Sequence[Projection]) -> Projection:
    """Projections of the same inputs as one; a missing bias is 0 where others have one. Raises ValueError.

    That is where some weights are floats and some in groups.
    """
    weight = joined([part.weight for part in parts])
    if all(part.bias is None for part in parts):
        return Projection(weight)
    device = next(part.bias.device for part in parts if part.bias is not None)
    biases = [
        torch.zeros(part.weight.shape[0], dtype=torch.float32, device=device) if part.bias is None else part.bias
        for part in parts
    ]
    return Projection(weight, torch.cat(biases))


class ExpertModules(Protocol):
    """Modules in place of an MLP. No row's bits depend on another row."""

    @property
    def nbytes(self) -> int:
        """What its weights take in memory."""
        ...

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Takes [T, d] and gives [T, d], float32."""
        ...


class Decoder(Protocol):
    """A model. Layers are made when they are asked for, so that memory need not hold all of them twice."""

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
    def states(self) -> StateLayout | None:
        """What recurrences keep; None where there are none."""
        ...

    @property
    def embedding_scale(self) -> float:
        """Multiplies the embeddings."""
        ...

    @property
    def residual_scale(self) -> float: ...

    @property
    def has_experts(self) -> bool:
        """Whether some layers have modules in place of an MLP, which they need as long as they run."""
        ...

    def layer(self, index: int) -> Layer:
        """Raises LookupError where experts mix rows."""
        ...

    def rotations(self, positions: int) -> list[torch.Tensor]:
        """Tables of the rotations of `positions` positions: cosine and sine of each pair, float32 [P, rotated / 2, 2].

        A factor that a position encoding puts on them (YaRN) is in them.
        """
        ...

    def release(self, index: int) -> None:
        """Empties the modules that a layer was made from, once its weights are laid out elsewhere."""
        ...

    def undo(self) -> None:
        """Modules of layers that were not released compute as they came."""
        ...
