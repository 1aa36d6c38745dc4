"""Linear layers over weights as a checkpoint holds them.

`PackedLinear` computes on a CPU, and no row's bits depend on another row, nor on the number of threads. `StoredLinear`
and `StoredEmbedding` are what a quantized model is made of when it is loaded: torch computes them, slowly, and faster
layers are made from them and compared with them. Whoever lays `stored` out anew may drop it here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import linear, pad

from qpdsl.executor.kernels.data.weights import FloatWeight, Weight
from qpdsl.executor.kernels.llvm.large_pages import give_back

if TYPE_CHECKING:
    from qpdsl.executor.kernels.llvm.product import Product

# Enough rows for BLAS to sum a row alike for any larger number of them, on every BLAS tried.
PADDED_ROWS = 16
# So many weights are turned into floats at a time, to stay in the caches.
_AT_ONCE = 1 << 18


class PackedLinear(torch.nn.Module):
    """y = x·Wᵀ + b on a CPU, computed in float32, by compiled code where the machine has vectors.

    Elsewhere torch computes it, in float32 and at least `PADDED_ROWS` rows.
    """

    def __init__(self, weight: Weight, bias: torch.Tensor | None = None) -> None:
        """Lays the weights [out, in] out anew; `bias` [out]."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.kind = weight.kind
        self.product = _compiled(weight, bias)
        self._bias = None if bias is None else bias.detach().float()
        self._weight: torch.Tensor | None = None
        if self.product is None:
            self._weight = weight.values.detach().clone() if isinstance(weight, FloatWeight) else weight.dequantized()

    @property
    def bias(self) -> torch.Tensor | None:
        """float32 [out]; None for none."""
        return self._bias

    @property
    def matrix(self) -> torch.Tensor | None:
        """The weights [out, in] of a layer that torch computes; None where it is compiled."""
        return self._weight

    @property
    def nbytes(self) -> int:
        """What the weights take in memory."""
        if self.product is not None:
            return self.product.weights.nbytes
        assert self._weight is not None
        return self._weight.numel() * self._weight.itemsize

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states [..., in] to [..., out], in their own type."""
        rows = hidden.reshape(-1, self.in_features).float()
        if self.product is not None:
            out = self.product(rows if rows.stride(-1) == 1 else rows.contiguous())
        else:
            out = self._by_torch(rows)
        return out.to(hidden.dtype).view(*hidden.shape[:-1], self.out_features)

    def rows(self, outputs: torch.Tensor) -> torch.Tensor:
        """The weights float32 [n, in] of some outputs int64 [n]: of a tied embedding, or to compute a few logits."""
        if self.product is not None:
            return self.product.weights.rows(outputs)
        assert self._weight is not None
        return self._weight[outputs].float()

    def _by_torch(self, rows: torch.Tensor) -> torch.Tensor:
        assert self._weight is not None
        count = rows.shape[0]
        padded = pad(rows, (0, 0, 0, max(0, PADDED_ROWS - count)))
        return linear(padded, self._weight.float(), self._bias)[:count]


def _compiled(weight: Weight, bias: torch.Tensor | None) -> Product | None:
    try:
        # The compiler need not be installed where other kernels run.
        from qpdsl.executor.kernels.llvm.compile import vector_width
        from qpdsl.executor.kernels.llvm.panels import PanelWeights
        from qpdsl.executor.kernels.llvm.product import Product
    except ImportError:
        return None
    width = vector_width()
    if not width:
        return None
    try:
        return Product(PanelWeights(weight, width), bias)
    except LookupError:
        return None


@dataclass(frozen=True, eq=False)
class LateWeight:
    """Weights [out, in] that are read whenever they are asked for, so that memory need not hold all layers' at once."""

    shape: tuple[int, int]
    read: Callable[[], Weight]


class StoredLinear(torch.nn.Module):
    """y = x·Wᵀ + b with W = `stored` [out, in] and `bias` float32 [out] or None, computed in float32."""

    bias: torch.Tensor | None

    def __init__(self, stored: Weight | LateWeight, bias: torch.Tensor | None = None) -> None:
        super().__init__()
        self._stored = stored
        self.out_features, self.in_features = stored.shape
        self.register_buffer("bias", bias, persistent=False)

    @property
    def stored(self) -> Weight:
        return self._stored.read() if isinstance(self._stored, LateWeight) else self._stored

    @stored.setter
    def stored(self, weight: Weight) -> None:
        self._stored = weight

    @property
    def place(self) -> Weight | LateWeight:
        """What holds the weights, or reads them."""
        return self._stored

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


def empty(module: torch.nn.Module) -> None:
    """Drops the weights of a layer or an embedding, which are laid out elsewhere."""
    if isinstance(module, StoredLinear | StoredEmbedding):
        module.stored = FloatWeight(torch.empty(0, 0))
    else:
        if getattr(module, "is_mapped", False):
            give_back(module.weight)
        module.weight = torch.nn.Parameter(torch.empty(0), requires_grad=False)


def stored_parameters(model: torch.nn.Module) -> int:
    """How many weights the layers of a model hold in this way; those of a tied head and embedding count once."""
    layers = [module for module in model.modules() if isinstance(module, StoredLinear | StoredEmbedding)]
    places = [layer.place if isinstance(layer, StoredLinear) else layer.stored for layer in layers]
    return sum(rows * columns for rows, columns in {id(place): place.shape for place in places}.values())
