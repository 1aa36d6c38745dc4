"""What a model computes besides matrix products and attention: Triton kernels on CUDA, their torch twins elsewhere.

    add_norm(residual, product, addition, norm)       a product joins the residual stream; the next norm
    rotate_store(joined, …)                           biases, norms and rotations of heads; keys and values into pages
    gate(widened, bias, activation)                   act(gate) · up

Each is one launch on a device, and none copies what it need not: the residual, the queries and the gated values are
changed in place. Sums and products are float32; a result is rounded once, to the type of the tensor that it lies in.
All of a row's bits depend on that row alone. So a layer is its four products, attention and four launches (add_norm
twice), as in vLLM (Kwon et al., 2023, section 5.1, "fused reshape and block write"), where keys and values are written
by a launch of their own.

A head draws tokens from hidden states without logits of all ids in memory:

    dense(hidden, head, draws, bits, lines)   over all ids, masked by bits

The product is summed in float32 and not rounded to the model's type. Nothing here waits for the device.
"""

from __future__ import annotations

import torch

from qpdsl.executor.kernels.data.kv_rows import KVRows
from qpdsl.executor.kernels.data.layer_constants import Activation, Addition, HeadConstants, NormWeights
from qpdsl.executor.kernels.data.token_draws import Drawn, HeadWeights, TokenDraws
from qpdsl.executor.kernels.paged_attention import on_device
from qpdsl.executor.kernels.plain import head_twins, layer_twins


def add_norm(
    residual: torch.Tensor, product: torch.Tensor | None, addition: Addition | None, norm: NormWeights | None
) -> torch.Tensor:
    """Adds `product` [T, d] to `residual` [T, d], in place, as `addition` says; both contiguous, of one type.

    Returns `norm` of the sum [T, d], as it was rounded; the residual itself where that is None. `product` and
    `addition` are both None where nothing is added.
    """
    if product is None and norm is None:
        return residual
    if on_device(residual):
        from qpdsl.executor.kernels.triton import layers as triton_layers

        return triton_layers.add_norm(residual, product, addition, norm)
    return layer_twins.add_norm(residual, product, addition, norm)


def rotate_store(
    joined: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    rotations: torch.Tensor | None,
    heads: HeadConstants,
    rows: KVRows,
    layer: int,
) -> torch.Tensor:
    """Makes queries, keys and values of their projection `joined` [T, heads.width], contiguous.

    Adds the bias, normalizes, and rotates the first pairs of neighbours of each query and key by the angle of its
    position; then keys and values are stored as `paged_attention.store` does. Returns the queries [T, heads, dim], a
    view of `joined`, which is changed in place; its keys and values must not be read any more.

    positions: int64 [T]
    slots:     int64 [T], see `PagedBatch`
    rotations: float32 [P, rotated / 2, 2], cosine and sine of each pair by position; None where nothing is rotated
    """
    if on_device(joined):
        from qpdsl.executor.kernels.triton import layers as triton_layers

        triton_layers.rotate_store(joined, positions, slots, rotations, heads, rows, layer)
    else:
        layer_twins.rotate_store(joined, positions, slots, rotations, heads, rows, layer)
    return joined[:, : heads.heads * heads.dim].view(len(joined), heads.heads, heads.dim)


def gate(widened: torch.Tensor, bias: torch.Tensor | None, activation: Activation) -> torch.Tensor:
    """act(gate) · up of `widened` [T, 2n], contiguous: n numbers of the gate and then n of `up`.

    `bias` float32 [2n] is added first. Returns [T, n], a view of `widened`, whose gate it replaces.
    """
    if on_device(widened):
        from qpdsl.executor.kernels.triton import layers as triton_layers

        triton_layers.gate(widened, bias, activation)
    else:
        layer_twins.gate(widened, bias, activation)
    return widened[:, : widened.shape[1] // 2]


def dense(
    hidden: torch.Tensor,
    head: HeadWeights,
    draws: TokenDraws,
    bits: torch.Tensor | None = None,
    lines: torch.Tensor | None = None,
    deterministic: bool = False,
) -> Drawn:
    """Draws a token for each of `draws` from hidden states [R, d], the last dimension contiguous.

    `bits` int32 [L, ⌈V / 32⌉]: lines of allowed ids, the lowest bit the first of 32; `lines` int32 [D]: the line of
    each draw, −1 where every id may come. Both are None where nothing is masked. `deterministic`: the bits of a draw
    depend on its own hidden state alone.
    """
    if not on_device(hidden):
        return head_twins.dense(hidden, head, draws, bits, lines)
    from qpdsl.executor.kernels.triton import head_kernels

    return head_kernels.dense(hidden, head, draws, bits, lines, deterministic)
