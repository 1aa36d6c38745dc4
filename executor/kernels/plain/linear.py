"""Linear layers laid out for a CPU's matrix kernels.

A weight is kept transposed, [in, out] in memory. BLAS then uses a kernel that is up to three times faster for few rows
than the one for [out, in], and that sums a row in the same order for any number of rows from 2 up to some limit. So
rows are computed in pieces of at most `ROWS`, and `safe_rows` tests how few rows are enough.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

# Larger pieces are no faster, and somewhere above 100 rows BLAS starts to split the sums of wide layers.
ROWS = 64
# In a wide layer BLAS would step through memory a whole row at a time, so the outputs are stored in blocks of columns.
# Narrow blocks are some 20% faster where the weight comes from memory; where it stays in a cache, fewer calls are.
_SMALL_INPUT = 512
_COLUMNS = 256
_COLUMNS_OF_SMALL = 1216
# Enough rows for weights [out, in], as models come with them, on every BLAS tried.
PADDED_ROWS = 16
_SIZES = (2, 3, 4, 5, 7, 8, 9, 11, 15, 16, 17, 24, 31, 33, 47, 48, 63)


class PackedLinear(torch.nn.Module):
    """y = x·Wᵀ + b with the weight transposed; from 2 rows on no row of y depends on how many there are."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """`weight` [out, in], `bias` [out]."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        columns = _COLUMNS_OF_SMALL if self.in_features <= _SMALL_INPUT else _COLUMNS
        parts = max(1, -(-self.out_features // columns))
        self.blocks = [block.t().contiguous() for block in weight.detach().tensor_split(parts)]
        self.bias = None if bias is None else bias.detach().clone()

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states [..., in] to [..., out]."""
        rows = hidden.reshape(-1, self.in_features) if hidden.dim() != 2 else hidden
        out = torch.empty((rows.shape[0], self.out_features), dtype=rows.dtype, device=rows.device)
        self.into(rows, out)
        return out if hidden.dim() == 2 else out.view(*hidden.shape[:-1], self.out_features)

    def into(self, rows: torch.Tensor, out: torch.Tensor) -> None:
        """Writes the layer's result for `rows` [T, in] to `out` [T, out]."""
        if rows.shape[0] <= ROWS and len(self.blocks) == 1:
            torch.mm(rows, self.blocks[0], out=out)
        else:
            pieces = list(zip(_pieces(rows), _pieces(out), strict=True))
            start = 0
            for weight in self.blocks:
                end = start + weight.shape[1]
                for source, target in pieces:
                    torch.mm(source, weight, out=target[:, start:end])
                start = end
        # The bias is always added after the product: a product that begins with it sums in another order.
        if self.bias is not None:
            out += self.bias

    def add_to(self, total: torch.Tensor, hidden: torch.Tensor) -> None:
        """`total` [T, out] += the layer's result for `hidden` [T, in]."""
        if self.bias is None and hidden.shape[0] <= ROWS and len(self.blocks) == 1:
            total.addmm_(hidden, self.blocks[0])
            return
        pieces = list(zip(_pieces(hidden), _pieces(total), strict=True))
        start = 0
        for weight in self.blocks:
            end = start + weight.shape[1]
            for source, target in pieces:
                target[:, start:end].addmm_(source, weight)
            start = end
        if self.bias is not None:
            total += self.bias


def _pieces(rows: torch.Tensor) -> Iterable[torch.Tensor]:
    count = rows.shape[0]
    # Even pieces, so that none has a single row, for which BLAS has another kernel.
    return (rows,) if count <= ROWS else rows.tensor_split(-(-count // ROWS))


@torch.inference_mode()
def safe_rows(layers: Iterable[PackedLinear]) -> int:
    """How many rows a product must have so that its bits do not depend on their number, at this thread count.

    Tested on random rows, once for each shape of the layers: 2 where all sizes agree, else `PADDED_ROWS`.
    """
    generator = torch.Generator().manual_seed(0)
    shapes = {(layer.in_features, layer.out_features, layer.bias is None): layer for layer in layers}
    for layer in shapes.values():
        weight = layer.blocks[0]
        rows = torch.randn(ROWS, layer.in_features, dtype=torch.float32, generator=generator).to(weight.dtype)
        expected, added = rows @ weight, torch.ones(ROWS, weight.shape[1], dtype=weight.dtype)
        expected_sum = added.clone().addmm_(rows, weight)
        for size in _SIZES:
            for start in (0, ROWS - size):
                part = slice(start, start + size)
                same = torch.equal(rows[part] @ weight, expected[part])
                if not same or not torch.equal(added[part].clone().addmm_(rows[part], weight), expected_sum[part]):
                    return PADDED_ROWS
    return 2
