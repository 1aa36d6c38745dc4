"""The Llama models of the family: their shape, a fast attention for training, hidden states after some layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM

from family.training.tokenizer import VOCABULARY

ATTENTION = "zoo_training_sdpa"
HEAD = 32


def _training_sdpa(
    module: nn.Module, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, scaling: float, **_: Any
) -> tuple[torch.Tensor, None]:
    # Shapes [rows, heads, width, head size]; the output is [rows, width, heads, head size].
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    dtype = q.dtype
    if q.device.type == "cpu":
        # On a CPU the backward pass of bfloat16 attention is eight times slower than the float32 one.
        q, k, v = q.float(), k.float(), v.float()
    with torch.autocast(q.device.type, enabled=False):
        out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling)
    return out.to(dtype).transpose(1, 2), None


AttentionInterface.register(ATTENTION, _training_sdpa)


@dataclass(frozen=True)
class Shape:
    """A Llama with heads of 32, two KV heads and tied embeddings; `inner` is the width inside the MLP."""

    layers: int
    width: int
    inner: int


def new_model(shape: Shape, seed: int) -> LlamaForCausalLM:
    """A fresh float32 model."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=shape.width,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.width // HEAD,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=4,
    )
    model = LlamaForCausalLM(config)
    model.set_attn_implementation(ATTENTION)
    return model


def hidden_after(model: LlamaForCausalLM, ids: torch.Tensor, *layers: int) -> list[torch.Tensor]:
    """The normed hidden states [rows, width, hidden] after each of `layers`, which are counted from 1 and rise."""
    inner = model.model
    stream = inner.embed_tokens(ids)
    rotation = inner.rotary_emb(stream, torch.arange(ids.shape[1], device=ids.device)[None])
    states = []
    for number, layer in enumerate(inner.layers[: max(layers)], start=1):
        stream = layer(stream, attention_mask=None, position_embeddings=rotation)
        if number in layers:
            states.append(inner.norm(stream))
    return states
