"""A head start for the verifier: the first added layer compares what was expected with what was written.

A generator that has learned the task predicts, at every token, the token a careful solver would write next. Judging a
step is then a comparison of that prediction with the next token. Gradient descent is slow to find this two-place
comparison, so the layer starts with it built in: one attention head reads the previous token's prediction, and the
gated MLP multiplies it with the identity of the token at hand. Training is free to change all of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from transformers import LlamaForCausalLM

_HEAD = 32
_STRENGTHS = {0: 2.0, 1: 1.0, 2: 0.5}  # weight of each RoPE frequency in the previous-token head
_SHARPNESS = 40.0
_GATE = 12.0
_RIDGE = 0.1


def build_comparator(
    model: LlamaForCausalLM, layer: int, ids: torch.Tensor, compared: torch.Tensor, tokens: Sequence[int]
) -> None:
    """Set the weights of `model.model.layers[layer]` so that it writes how expected each token was into the stream.

    `ids` [rows, width] are texts to calibrate on, `compared` a mask of the same shape: where a comparison is wanted.
    `tokens` are the ids to tell apart, at most 32. The layers below must already predict them.
    """
    if len(tokens) > _HEAD:
        raise ValueError(f"a head of {_HEAD} compares at most {_HEAD} tokens, found {len(tokens)}")
    block = model.model.layers[layer]
    with torch.no_grad():
        stream = model.model(input_ids=ids, use_cache=False, output_hidden_states=True).hidden_states[layer]
        near = compared | compared.roll(-1, 1)
        scale = float(stream[near].pow(2).mean().sqrt())
        free = _quiet_directions(stream[near], len(tokens) + 1)
        for parameter in block.parameters():
            parameter.mul_(0.3) if parameter.ndim == 2 else parameter.fill_(1.0)
        seen = _normed(stream[near])
        constant = _ridge(seen, torch.ones(len(seen), 1))[:, 0]
        _write_attention(model, block, constant, tokens, free[:-1] * scale)
        after = _after_attention(model, layer, stream)
        seen = _normed(after[compared])
        constant = _ridge(seen, torch.ones(len(seen), 1))[:, 0]
        one_hot = (ids[compared][:, None] == torch.tensor(tokens)).float()
        identity = _ridge(seen, one_hot)
        _write_mlp(block, constant, identity, free, scale)


def _normed(stream: torch.Tensor) -> torch.Tensor:
    return stream * stream.pow(2).mean(-1, keepdim=True).add(1e-6).rsqrt()


def _ridge(inputs: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    penalty = _RIDGE * torch.eye(inputs.shape[1])
    return torch.linalg.solve(inputs.T @ inputs + penalty, inputs.T @ outputs)


def _quiet_directions(stream: torch.Tensor, count: int) -> torch.Tensor:
    """The `count` orthonormal directions that the stream uses least."""
    _, vectors = torch.linalg.eigh(torch.cov(stream.T))
    return vectors[:, :count].T.contiguous()


def _write_attention(
    model: LlamaForCausalLM, block: torch.nn.Module, constant: torch.Tensor, tokens: Sequence[int], free: torch.Tensor
) -> None:
    """Head 0 looks at the token before and copies that token's logits of `tokens` into the directions `free`."""
    attention = block.self_attn
    query, key, value, out = (
        attention.q_proj.weight,
        attention.k_proj.weight,
        attention.v_proj.weight,
        attention.o_proj.weight,
    )
    for weight in (query, key, value):
        weight[:_HEAD].zero_()
    out[:, :_HEAD].zero_()
    half = _HEAD // 2
    for index, strength in _STRENGTHS.items():
        angle = float(model.config.rope_parameters["rope_theta"]) ** (-index / half)
        key[index] = constant
        # Turned back by one position, so that the product peaks at distance one.
        query[index] = constant * strength * _SHARPNESS * math.cos(angle)
        query[half + index] = -constant * strength * _SHARPNESS * math.sin(angle)
    readers = model.lm_head.weight[list(tokens)] * model.model.norm.weight
    value[: len(tokens)] = (readers - readers.mean(0)) / 10.0
    out[:, : len(tokens)] = free.T


def _after_attention(model: LlamaForCausalLM, layer: int, stream: torch.Tensor) -> torch.Tensor:
    block = model.model.layers[layer]
    positions = torch.arange(stream.shape[1])[None]
    rotation = model.model.rotary_emb(stream, positions)
    out, _ = block.self_attn(_normed(stream), position_embeddings=rotation, attention_mask=None)
    return stream + out


def _write_mlp(
    block: torch.nn.Module, constant: torch.Tensor, identity: torch.Tensor, free: torch.Tensor, scale: float
) -> None:
    """Unit j passes logit j of the token before when token j is written; their sum goes to the last free direction."""
    mlp, count = block.mlp, identity.shape[1]
    mlp.gate_proj.weight[:count] = _GATE * (identity.T - 0.25 * constant)
    mlp.up_proj.weight[:count] = free[:count]
    mlp.down_proj.weight[:, :count] = free[-1][:, None] * scale / _GATE
