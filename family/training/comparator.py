"""Initial weights for the verifier: the first added layer compares the expected token with the written one.

A generator that has learned the task predicts, at every token, the token that a careful solver would write next.
Judging a step is then a comparison of that prediction with the next token. Gradient descent is slow to find this
comparison of two places, so the layer starts with a rough form of it: one attention head reads the previous token's
prediction, and the gated MLP multiplies it with the identity of the current token. Training can change all of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import LlamaForCausalLM

from family.training.llama import HEAD, Shape, new_model

_STRENGTHS = (2.0, 1.0, 0.5)  # weight of each RoPE frequency in the previous-token head
_SHARPNESS = 40.0
_GATE = 12.0
_RIDGE = 0.1


def with_comparator(
    generator: LlamaForCausalLM, shape: Shape, ids: torch.Tensor, compared: torch.Tensor, seed: int
) -> LlamaForCausalLM:
    """A deeper model: the generator's layers, the comparator, and layers that add nothing at first.

    `ids` [rows, width] are texts to calibrate on; `compared` is a mask of the same shape: where to compare. The 32
    tokens most common there are compared. Raises ValueError when `shape` has no more layers than the generator.
    """
    depth = len(generator.model.layers)
    unique, counts = torch.unique(ids[compared], return_counts=True)
    tokens = unique[counts.argsort(descending=True)[:HEAD]].tolist()
    if shape.layers <= depth:
        raise ValueError(f"a verifier over {depth} layers needs more than {depth}, found {shape.layers}")
    model = new_model(shape, seed)
    model.load_state_dict(generator.state_dict(), strict=False)
    for layer in model.model.layers[depth + 1 :]:
        nn.init.zeros_(layer.self_attn.o_proj.weight)
        nn.init.zeros_(layer.mlp.down_proj.weight)
    with torch.no_grad():
        _compare(model, depth, ids, compared, tokens)
    return model


def _compare(
    model: LlamaForCausalLM, layer: int, ids: torch.Tensor, compared: torch.Tensor, tokens: Sequence[int]
) -> None:
    block, count = model.model.layers[layer], len(tokens)
    stream = model.model(input_ids=ids, use_cache=False, output_hidden_states=True).hidden_states[layer]
    near = compared | compared.roll(-1, 1)
    scale = float(stream[near].pow(2).mean().sqrt())
    free = _quiet_directions(stream[near], count + 1)
    for parameter in block.parameters():
        if parameter.ndim == 2:
            parameter.mul_(0.3)
    constant = _ridge(_normed(stream[near]), torch.ones(int(near.sum()), 1))[:, 0]
    _look_back(model, block, constant, tokens, free[:-1] * scale)
    rotation = model.model.rotary_emb(stream, torch.arange(stream.shape[1])[None])
    attention, _ = block.self_attn(_normed(stream), position_embeddings=rotation, attention_mask=None)
    inputs = _normed(stream + attention)[compared]
    marks = (ids[compared][:, None] == torch.tensor(tokens)).float()
    readers = _ridge(inputs, torch.cat([marks, torch.ones_like(marks[:, :1])], -1)).T
    # Unit j passes on logit j of the previous token when token j is written. Their sum goes to the last free direction.
    mlp = block.mlp
    mlp.gate_proj.weight[:count] = _GATE * (readers[:-1] - 0.25 * readers[-1])
    mlp.up_proj.weight[:count] = free[:-1]
    mlp.down_proj.weight[:, :count] = free[-1][:, None] * scale / _GATE


def _normed(stream: torch.Tensor) -> torch.Tensor:
    return stream * stream.pow(2).mean(-1, keepdim=True).add(1e-6).rsqrt()


def _ridge(inputs: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    penalty = _RIDGE * torch.eye(inputs.shape[1])
    solution: torch.Tensor = torch.linalg.solve(inputs.T @ inputs + penalty, inputs.T @ outputs)
    return solution


def _quiet_directions(stream: torch.Tensor, count: int) -> torch.Tensor:
    """The `count` orthonormal directions that the stream [places, hidden] uses least, as rows."""
    _, vectors = torch.linalg.eigh(torch.cov(stream.T))
    quiet: torch.Tensor = vectors[:, :count].T.contiguous()
    return quiet


def _look_back(
    model: LlamaForCausalLM, block: Any, constant: torch.Tensor, tokens: Sequence[int], free: torch.Tensor
) -> None:
    """Head 0 attends to the previous token and copies its logits of `tokens` into the directions `free`."""
    attention, half = block.self_attn, HEAD // 2
    query, key, value = attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight
    for weight in (query, key, value):
        weight[:HEAD].zero_()
    attention.o_proj.weight[:, :HEAD].zero_()
    for index, strength in enumerate(_STRENGTHS):
        angle = float(model.config.rope_parameters["rope_theta"]) ** (-index / half)
        key[index] = constant
        # Rotated back by one position, so that the product peaks at distance one.
        query[index] = constant * strength * _SHARPNESS * math.cos(angle)
        query[half + index] = -constant * strength * _SHARPNESS * math.sin(angle)
    readers = model.lm_head.weight[list(tokens)] * model.model.norm.weight
    value[: len(tokens)] = (readers - readers.mean(0)) / 10.0
    attention.o_proj.weight[:, : len(tokens)] = free.T
