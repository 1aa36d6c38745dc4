"""Linear layers and embeddings that keep their weights as the checkpoint holds them, and compute by torch.

They are what a quantized model is made of when it is loaded: slow, and what faster layers are made from and compared
with. Whoever lays `stored` out anew may drop it here.
"""

from __future__ import annotations

import torch
from torch.nn.functional import linear

from qpdsl.executor.kernels.data.weights import Weight

# So many weights are turned into floats at a time, to stay in the caches.
_AT_ONCE = 1 << 18


class StoredLinear(torch.nn.Module):
    """y = x·Wᵀ + b with W = `stored` [out, in] and `bias` float32 [out] or None, computed in float32."""

    bias: torch.Tensor | None

    def __init__(self, stored: Weight, bias: torch.Tensor | None = None) -> None:
        super().__init__()
        self.stored = stored
        self.out_features, self.in_features = stored.shape
        self.register_buffer("bias", bias, persistent=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states [..., in] to [..., out], in their own type."""
        rows = hidden.reshape(-1, self.in_features).float()
        count = max(1, _AT_ONCE // self.in_features)
        pieces = (self.stored.select(slice(start, start + count)) for start in range(0, self.out_features, count))
        out = torch.cat([linear(rows, piece.dequantized()) for piece in pieces], dim=1)
        if self.bias is not None:
            out = out + self.bias
        return out.to(hidden.dtype).view(*hidden.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, {self.stored.kind}"


class StoredEmbedding(torch.nn.Module):
    """Embeddings that are rows of `stored` [ids, d], times a `scale`."""

    def __init__(self, stored: Weight, scale: float = 1.0) -> None:
        super().__init__()
        self.stored = stored
        self.scale = scale
        self.num_embeddings, self.embedding_dim = stored.shape

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Embeddings float32 [..., d] of ids int64 [...]."""
        rows = self.stored.select(ids.flatten()).dequantized()
        return (rows if self.scale == 1.0 else rows * self.scale).view(*ids.shape, self.embedding_dim)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, {self.stored.kind}"


def stored_parameters(model: torch.nn.Module) -> int:
    """How many weights the layers of a model hold in this way; those of a tied head and embedding count once."""
    layers = (module for module in model.modules() if isinstance(module, StoredLinear | StoredEmbedding))
    return sum(rows * columns for rows, columns in {id(layer.stored): layer.stored.shape for layer in layers}.values())
