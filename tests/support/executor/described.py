"""The forward of a described model, as slow and as plain as can be: whole causal attention, float32, no cache."""

from __future__ import annotations

import torch
from torch.nn.functional import gelu, silu

from qpdsl.executor.engine.model.decoder import Attention, Decoder, HeadCounts, HeadNorms, Mlp, Norm, Projection


def hidden_states(decoder: Decoder, embeddings: torch.Tensor) -> torch.Tensor:
    """Hidden states float32 [T, d] after the last norm, of the embeddings float32 [T, d] of one text."""
    hidden = embeddings * decoder.embedding_scale
    tables = decoder.rotations(len(embeddings))
    for index in range(decoder.layers):
        layer = decoder.layer(index)
        attended = _attention(layer.attention, decoder.shape.heads, tables, _norm(layer.before_mixer, hidden))
        hidden = hidden + decoder.residual_scale * _norm(layer.after_mixer, attended)
        widened = _mlp(layer.mlp, decoder.shape.intermediate, _norm(layer.before_mlp, hidden))
        hidden = hidden + decoder.residual_scale * _norm(layer.after_mlp, widened)
    return _norm(decoder.norm, hidden)


def _attention(part: Attention, counts: HeadCounts, tables: list[torch.Tensor], hidden: torch.Tensor) -> torch.Tensor:
    count = len(hidden)
    heads = _product(part.joined, hidden).view(count, counts.fold + 2, counts.kv_heads, counts.dim)
    queries, keys, values = heads[:, : counts.fold], heads[:, counts.fold : -1], heads[:, -1]
    if part.norms is not None:
        queries = _head_norm(part.norms, part.norms.weight[: counts.fold], queries)
        keys = _head_norm(part.norms, part.norms.weight[counts.fold :], keys)
    if part.rotation is not None:
        queries, keys = (_rotated(tables[part.rotation], states) for states in (queries, keys))
    distance = torch.arange(count)[:, None] - torch.arange(count)
    seen = (distance >= 0) & (distance < (part.window or count))
    scores = torch.einsum("tgkd,skd->gkts", queries, keys[:, 0]) * part.scale
    if part.softcap is not None:
        scores = torch.tanh(scores / part.softcap) * part.softcap
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    return _product(part.out, torch.einsum("gkts,skd->tgkd", weights, values).flatten(1))


def _mlp(part: Mlp, intermediate: int, hidden: torch.Tensor) -> torch.Tensor:
    gate, up = _product(part.widen, hidden).split(intermediate, dim=1)
    return _product(part.down, (silu(gate) if part.activation == "silu" else gelu(gate, approximate="tanh")) * up)


def _rotated(table: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
    """`states` [T, heads, KV, D] with their first pairs turned."""
    width = 2 * table.shape[1]
    first, second = states[..., 0:width:2], states[..., 1:width:2]
    cos, sin = table[:, None, None, :, 0], table[:, None, None, :, 1]
    turned = torch.stack((first * cos - second * sin, first * sin + second * cos), dim=-1).flatten(-2)
    return torch.cat((turned, states[..., width:]), dim=-1)


def _head_norm(norms: HeadNorms, weight: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
    over = (1, 2, 3) if norms.whole else (3,)
    return states * torch.rsqrt(states.square().mean(over, keepdim=True) + norms.epsilon) * weight


def _norm(norm: Norm | None, states: torch.Tensor) -> torch.Tensor:
    if norm is None:
        return states
    return states * torch.rsqrt(states.square().mean(-1, keepdim=True) + norm.epsilon) * norm.weight


def _product(product: Projection, states: torch.Tensor) -> torch.Tensor:
    result = states @ product.weight.dequantized().t()
    return result if product.bias is None else result + product.bias
