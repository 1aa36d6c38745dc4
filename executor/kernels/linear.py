"""Linear layers of which no row's bits depend on another row, nor on the number of threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import linear, pad

from qpdsl.executor.kernels.data.weights import FloatWeight, Weight

if TYPE_CHECKING:
    from qpdsl.executor.kernels.llvm.matmul.product import Product

# Enough rows for BLAS to sum a row alike for any larger number of them, on every BLAS tried.
PADDED_ROWS = 16


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
        from qpdsl.executor.kernels.llvm.jit.compile import vector_width
        from qpdsl.executor.kernels.llvm.matmul.panels import PanelWeights
        from qpdsl.executor.kernels.llvm.matmul.product import Product
    except ImportError:
        return None
    width = vector_width()
    if not width:
        return None
    try:
        return Product(PanelWeights(weight, width), bias)
    except LookupError:
        return None
