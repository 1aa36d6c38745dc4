"""Between a layer's matrix products, in torch: the twins of `triton/layers.py`. See `kernels/layers.py`."""

from __future__ import annotations

import torch
from torch.nn.functional import gelu, silu

from qpdsl.executor.kernels.data.kv_rows import KVRows
from qpdsl.executor.kernels.data.layer_constants import Activation, Addition, HeadConstants, NormWeights
from qpdsl.executor.kernels.plain import reference


def add_norm(
    residual: torch.Tensor, product: torch.Tensor | None, addition: Addition | None, norm: NormWeights | None
) -> torch.Tensor:
    """As `layers.add_norm`."""
    if product is not None and addition is not None:
        added = product.float()
        if addition.bias is not None:
            added = added + addition.bias
        if addition.norm is not None:
            added = _normed(added, addition.norm)
        residual.copy_(residual.float() + addition.scale * added)
    return residual if norm is None else _normed(residual.float(), norm).to(residual.dtype)


def rotate_store(
    joined: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    rotations: torch.Tensor | None,
    heads: HeadConstants,
    rows: KVRows,
    layer: int,
) -> None:
    """As `layers.rotate_store`."""
    states = joined.to(torch.float32, copy=True)
    if heads.bias is not None:
        states = states + heads.bias
    parts = [heads.heads, heads.kv_heads, heads.kv_heads]
    query, key, value = torch.split(states.view(len(joined), -1, heads.dim), parts, dim=1)
    if heads.norms is not None:
        query = _head_normed(query, heads.norms[: heads.heads], heads)
        key = _head_normed(key, heads.norms[heads.heads :], heads)
    if rotations is not None:
        query, key = (_rotated(part, rotations[positions]) for part in (query, key))
    joined[:, : heads.heads * heads.dim] = query.flatten(1).to(joined.dtype)
    reference.store(rows, key, value, slots, layer)


def gate(widened: torch.Tensor, bias: torch.Tensor | None, activation: Activation) -> None:
    """As `layers.gate`."""
    states = widened.float()
    if bias is not None:
        states = states + bias
    before, up = states.chunk(2, dim=1)
    active = silu(before) if activation == "silu" else gelu(before, approximate="tanh")
    widened[:, : up.shape[1]] = (active * up).to(widened.dtype)


def _normed(states: torch.Tensor, norm: NormWeights) -> torch.Tensor:
    return states * torch.rsqrt(states.square().mean(-1, keepdim=True) + norm.epsilon) * norm.weight


def _head_normed(states: torch.Tensor, weight: torch.Tensor, heads: HeadConstants) -> torch.Tensor:
    over = (1, 2) if heads.whole else (2,)
    return states * torch.rsqrt(states.square().mean(over, keepdim=True) + heads.epsilon) * weight


def _rotated(states: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """`states` [T, heads, dim] with their first pairs turned by `angles` [T, pairs, 2]."""
    width = 2 * angles.shape[1]
    first, second = states[..., 0:width:2], states[..., 1:width:2]
    cos, sin = angles[:, None, :, 0], angles[:, None, :, 1]
    turned = torch.stack((first * cos - second * sin, first * sin + second * cos), dim=-1).flatten(-2)
    return torch.cat((turned, states[..., width:]), dim=-1)
