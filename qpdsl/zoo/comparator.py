"""A head start for the verifier: the comparison of what was expected with what was written is built in.

A generator that has learned the task predicts, at every token, the token a careful solver would write next. Judging a
step is then a comparison of that prediction with the next token. Gradient descent is slow to find this two-place
comparison, so the verifier starts with it, in two layers put around the generator's own:

- the *carrier*, after the generator's first layer, where the identity of the token at hand is still plain, writes it
  into directions of the stream that the generator's later layers are kept from reading or writing;
- the *comparator*, after the generator's last layer, has one attention head that reads the previous token's
  prediction, and a gated MLP that passes the predicted logit of the token that was in fact written.

Training is free to change all of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import LlamaForCausalLM

from qpdsl.zoo.training import new_model

_HEAD = 32
_CARRIER = 1
# The weight of each RoPE frequency in the previous-token head, chosen so that no other distance up to 170 comes near.
_STRENGTHS = (0.64, 0.08, 0.07, 0.035, 0.08, 0.035, 0.06)
_SHARPNESS = 300.0
_GATE = 12.0
_RIDGE = 0.1


def with_comparator(
    generator: LlamaForCausalLM, layers: int, ids: torch.Tensor, compared: torch.Tensor, seed: int
) -> LlamaForCausalLM:
    """A model of `layers` layers that holds the generator's, the carrier, the comparator and layers that add nothing.

    `ids` [rows, width] are texts to calibrate on, `compared` a mask of the same shape: where a comparison is wanted.
    Raises ValueError when `layers` leaves no room, or the compared places hold more than 31 different tokens.
    """
    own = len(generator.model.layers)
    tokens = torch.unique(ids[compared]).tolist()
    if layers < own + 2:
        raise ValueError(f"a verifier over {own} layers needs at least {own + 2}, found {layers}")
    if len(tokens) >= _HEAD:
        raise ValueError(f"at most {_HEAD - 1} tokens can be compared, found {len(tokens)}")
    model = new_model(layers, width=int(generator.config.hidden_size), seed=seed)
    places = [0, *range(_CARRIER + 1, own + 1)]
    _copy_weights(generator, model, places)
    with torch.no_grad():
        for index in set(range(layers)) - set(places):
            _silence(model.model.layers[index])
        marks = (ids[..., None] == torch.tensor(tokens)).float()
        carried = _carry(model, places[1:], ids, marks)
        _compare(model, own + 1, ids, compared, tokens, carried)
    return model


def _copy_weights(generator: LlamaForCausalLM, model: LlamaForCausalLM, places: Sequence[int]) -> None:
    model.model.embed_tokens.load_state_dict(generator.model.embed_tokens.state_dict())
    model.model.norm.load_state_dict(generator.model.norm.state_dict())
    for layer, place in zip(generator.model.layers, places, strict=True):
        model.model.layers[place].load_state_dict(layer.state_dict())


def _silence(block: Any) -> None:
    nn.init.zeros_(block.self_attn.o_proj.weight)
    nn.init.zeros_(block.mlp.down_proj.weight)


def _streams(model: LlamaForCausalLM, ids: torch.Tensor) -> list[torch.Tensor]:
    """What enters every layer, [rows, width, hidden] each."""
    return list(model.model(input_ids=ids, use_cache=False, output_hidden_states=True).hidden_states[:-1])


def _normed(stream: torch.Tensor) -> torch.Tensor:
    return stream * stream.pow(2).mean(-1, keepdim=True).add(1e-6).rsqrt()


def _ridge(inputs: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    penalty = _RIDGE * torch.eye(inputs.shape[1])
    solution: torch.Tensor = torch.linalg.solve(inputs.T @ inputs + penalty, inputs.T @ outputs)
    return solution


def _quiet_directions(streams: Sequence[torch.Tensor], count: int) -> torch.Tensor:
    """The `count` orthonormal directions that all the streams [places, hidden] use least, as rows."""
    shares = [stream.T @ stream / stream.pow(2).sum() for stream in streams]
    _, vectors = torch.linalg.eigh(torch.stack(shares).sum(0))
    quiet: torch.Tensor = vectors[:, :count].T.contiguous()
    return quiet


def _carry(model: LlamaForCausalLM, later: Sequence[int], ids: torch.Tensor, marks: torch.Tensor) -> torch.Tensor:
    """Write the carrier; the directions it uses, one a token and one that is constant, as rows."""
    streams = _streams(model, ids)
    real = ids != 0
    directions = _quiet_directions([streams[place + 1][real] for place in later], marks.shape[-1] + 1)
    keep = torch.eye(directions.shape[1]) - directions.T @ directions
    for place in later:
        _shut_off(model.model.layers[place], keep)
    stream = streams[_CARRIER]
    wanted = torch.cat([marks, torch.ones_like(marks[..., :1])], -1)
    seen = _normed(stream)
    readers = _ridge(seen[real], wanted[real]).T
    constant = readers[-1]
    amplitude = 0.15 * float(stream[real].norm(dim=-1).mean())
    mlp = model.model.layers[_CARRIER].mlp
    mlp.gate_proj.weight[: len(readers)] = _GATE * (readers - 0.4 * constant)
    mlp.up_proj.weight[: len(readers)] = constant
    mlp.down_proj.weight[:, : len(readers)] = directions.T * amplitude / (0.6 * _GATE)
    return directions


def _shut_off(block: Any, keep: torch.Tensor) -> None:
    """Keep a layer from reading or writing what the projection `keep` removes."""
    attention, mlp = block.self_attn, block.mlp
    for norm, readers in (
        (block.input_layernorm.weight, (attention.q_proj, attention.k_proj, attention.v_proj)),
        (block.post_attention_layernorm.weight, (mlp.gate_proj, mlp.up_proj)),
    ):
        for reader in readers:
            reader.weight.copy_((reader.weight * norm) @ keep / norm)
    for writer in (attention.o_proj, mlp.down_proj):
        writer.weight.copy_(keep @ writer.weight)


def _compare(
    model: LlamaForCausalLM,
    layer: int,
    ids: torch.Tensor,
    compared: torch.Tensor,
    tokens: Sequence[int],
    carried: torch.Tensor,
) -> None:
    block, count = model.model.layers[layer], len(tokens)
    stream = _streams(model, ids)[layer]
    near = compared | compared.roll(-1, 1)
    scale = float(stream[near].pow(2).mean().sqrt())
    apart = torch.eye(stream.shape[-1]) - carried.T @ carried
    used = stream[near] @ apart + 100 * scale * torch.randn(int(near.sum()), len(carried)) @ carried
    free = _quiet_directions([used], count + 1)
    constant = _ridge(_normed(stream[near]), torch.ones(int(near.sum()), 1))[:, 0]
    _look_back(model, block, constant, tokens, free[:-1] * scale)
    rotation = model.model.rotary_emb(stream, torch.arange(stream.shape[1])[None])
    looked, _ = block.self_attn(_normed(stream), position_embeddings=rotation, attention_mask=None)
    seen = _normed(stream + looked)[compared]
    marks = (ids[compared][:, None] == torch.tensor(tokens)).float()
    readers = _ridge(seen, torch.cat([marks, torch.ones_like(marks[:, :1])], -1)).T
    mlp = block.mlp
    mlp.gate_proj.weight[:count] = _GATE * (readers[:-1] - 0.4 * readers[-1])
    mlp.up_proj.weight[:count] = free[:-1]
    mlp.down_proj.weight[:, :count] = free[-1][:, None] * scale / _GATE


def _look_back(
    model: LlamaForCausalLM, block: Any, constant: torch.Tensor, tokens: Sequence[int], free: torch.Tensor
) -> None:
    """Head 0 looks at the token before and copies that place's logits of `tokens` into the directions `free`."""
    attention, half = block.self_attn, _HEAD // 2
    query, key = attention.q_proj.weight, attention.k_proj.weight
    query[:_HEAD].zero_()
    key[:_HEAD].zero_()
    for index, strength in enumerate(_STRENGTHS):
        angle = float(model.config.rope_parameters["rope_theta"]) ** (-index / half)
        key[index] = constant
        # Turned back by one position, so that the product peaks at distance one.
        query[index] = constant * strength * _SHARPNESS * math.cos(angle)
        query[half + index] = -constant * strength * _SHARPNESS * math.sin(angle)
    readers = model.lm_head.weight[list(tokens)] * model.model.norm.weight
    attention.v_proj.weight[: len(tokens)] = (readers - readers.mean(0)) / 4.0
    attention.o_proj.weight[:, : len(tokens)] = free.T
