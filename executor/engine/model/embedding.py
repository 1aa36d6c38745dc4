"""Token ids to the hidden states before the first layer."""

from __future__ import annotations

import torch

from qpdsl.executor.kernels.data.weights import FLOATS, FloatWeight, GroupedWeight, Weight
from qpdsl.executor.kernels.linear import PackedLinear


class TokenEmbedding:
    """Rows of the embedding, times the model's scale, rounded as the model's own module rounds them.

    Where the head shares its weights they are read from the head's layout, so that memory holds them once.
    """

    def __init__(self, module: torch.nn.Module, scale: float, tied: PackedLinear | None) -> None:
        """`tied`: the head, if it shares the weights; the module may then be dropped.

        Raises LookupError where the module holds no plain weights.
        """
        weight = embedded_weight(module)
        self._scale = scale
        # A module that holds the weights of a quantized checkpoint computes in float32.
        self._dtype = torch.float32
        if isinstance(weight, FloatWeight) and not hasattr(module, "stored"):
            self._dtype = weight.values.dtype
        self._tied = tied
        self._weight = weight if tied is None else None

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """float32 [T, d] of `tokens` int64 [T]."""
        if self._tied is not None:
            rows = self._tied.rows(tokens)
        else:
            assert self._weight is not None
            rows = self._weight.select(tokens).dequantized()
        if self._scale != 1.0:
            rows = (rows * self._scale).to(self._dtype).float()
        return rows


def embedded_weight(module: torch.nn.Module) -> Weight:
    """The weights of an embedding. Raises LookupError where another library keeps them in a form of its own."""
    stored = getattr(module, "stored", None)
    if isinstance(stored, FloatWeight | GroupedWeight):
        return stored
    values = getattr(module, "weight", None)
    if not isinstance(values, torch.Tensor) or values.dtype not in FLOATS:
        raise LookupError(type(module).__name__)
    return FloatWeight(values.detach())
