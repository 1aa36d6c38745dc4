"""Heads that draw tokens from hidden states without logits of all ids in memory: Triton kernels, or their torch twins.

    dense(hidden, head, draws, bits, lines)              over all ids, masked by bits
    sparse(hidden, head, draws, offsets, ids, longest)   over a list of ids for each draw

The product is summed in float32 and not rounded to the model's type. Dense and sparse sum a logit's products in another
order, so they draw the same tokens but for near ties. Nothing here waits for the device.
"""

from __future__ import annotations

import torch

from qpdsl.executor.kernels.data.token_draws import Drawn, HeadWeights, TokenDraws
from qpdsl.executor.kernels.paged_attention import on_device
from qpdsl.executor.kernels.plain import head_twins


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
    from qpdsl.executor.kernels.triton.heads import dense_head

    return dense_head.dense(hidden, head, draws, bits, lines, deterministic)


def sparse(
    hidden: torch.Tensor, head: HeadWeights, draws: TokenDraws, offsets: torch.Tensor, ids: torch.Tensor, longest: int
) -> Drawn:
    """The same where the allowed ids of draw i are `ids[offsets[i]:offsets[i + 1]]`, ascending.

    `ids` int32, `offsets` int32 [D + 1]; the longest list has `longest` ids. The bits of a draw depend on its own
    hidden state and list alone.
    """
    if not on_device(hidden):
        return head_twins.sparse(hidden, head, draws, offsets, ids, longest)
    from qpdsl.executor.kernels.triton.heads import sparse_head

    return sparse_head.sparse(hidden, head, draws, offsets, ids, longest)
