"""The head of EAGLE: it predicts a model's next hidden state from those before it and the token that came next.

Li, Wei, Zhang and Zhang, "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty", 2024, and its published
checkpoints (github.com/SafeAILab/EAGLE), whose names of weights the parameters have.

Transformers' Llama takes seconds to import, so it is imported where a head is made: few runs have one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from transformers import LlamaConfig


class HeadKV:
    """Keys and values of one sample in the head, [2, room, kv_heads, dim]: the first `count` are there to stay."""

    def __init__(self) -> None:
        self.count = 0
        self._data: torch.Tensor | None = None

    def written(self, at: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes [M, kv_heads, dim] from place `at` on; gives all up to the last that was written."""
        end, data = at + len(keys), self._data
        if data is None or end > data.shape[1]:
            grown = keys.new_zeros((2, max(32, 2 * end), *keys.shape[1:]))
            if data is not None:
                grown[:, :at] = data[:, :at]
            self._data = data = grown
        data[0, at:end], data[1, at:end] = keys, values
        return data[0, :end], data[1, :end]

    def copy(self) -> HeadKV:
        """One that goes its own way from here."""
        other = HeadKV()
        other.count = self.count
        other._data = None if self._data is None else self._data.clone()
        return other


class _Attention(torch.nn.Module):
    def __init__(self, config: LlamaConfig, bias: bool) -> None:
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

        super().__init__()
        self._rotated = apply_rotary_pos_emb
        hidden, self.dim = config.hidden_size, config.head_dim
        self.q_proj = torch.nn.Linear(hidden, config.num_attention_heads * self.dim, bias=bias)
        self.k_proj = torch.nn.Linear(hidden, config.num_key_value_heads * self.dim, bias=bias)
        self.v_proj = torch.nn.Linear(hidden, config.num_key_value_heads * self.dim, bias=bias)
        self.o_proj = torch.nn.Linear(config.num_attention_heads * self.dim, hidden, bias=False)

    def project(
        self, inputs: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values [B, heads, T, dim] of inputs [B, T, d], rotated."""
        queries, keys, values = (
            projection(inputs).unflatten(-1, (-1, self.dim)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        queries, keys = self._rotated(queries, keys, cos, sin)
        return queries, keys, values


class _Layer(torch.nn.Module):
    """A layer of Llama without the norm before its attention."""

    def __init__(self, config: LlamaConfig, bias: bool) -> None:
        from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm

        super().__init__()
        self.self_attn = _Attention(config, bias)
        self.mlp = LlamaMLP(config)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def finish(self, inputs: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """What follows attention, [..., d]."""
        hidden = inputs + self.self_attn.o_proj(attended)
        result: torch.Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return result


class EagleHead(torch.nn.Module):
    """One layer over `fc` of a token's embedding and the hidden state before it, in this order.

    Hidden states ("features") are those after the model's last norm, which its own head reads, and so are the
    predictions. `embeds`: whether it has embeddings of its own; else it is given the model's.
    """

    def __init__(
        self, config: LlamaConfig, *, embeds: bool = False, bias: bool = True, attention_bias: bool = False
    ) -> None:
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

        super().__init__()
        self.config = config
        self.embed_tokens = torch.nn.Embedding(config.vocab_size, config.hidden_size) if embeds else None
        self.fc = torch.nn.Linear(2 * config.hidden_size, config.hidden_size, bias=bias)
        self.layers = torch.nn.ModuleList([_Layer(config, attention_bias)])
        self._rotary = LlamaRotaryEmbedding(config)

    def forward(self, embedded: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        """For training: predictions [B, T, d] of the features one position later.

        embedded: [B, T, d], the embedding of the token after each position
        features: [B, T, d], those at the positions
        """
        inputs, layer = self.fc(torch.cat((embedded, features), dim=-1)), self._layer
        positions = torch.arange(inputs.shape[1], device=inputs.device)[None]
        queries, keys, values = layer.self_attn.project(inputs, *self._rotary(inputs, positions))
        mixed = scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=True)
        return layer.finish(inputs, mixed.transpose(1, 2).flatten(2))

    @torch.inference_mode()
    def extend(
        self,
        embedded: torch.Tensor,
        features: torch.Tensor,
        positions: Sequence[int],
        parts: Sequence[tuple[HeadKV, int, torch.Tensor]],
    ) -> torch.Tensor:
        """Predictions [N, d] from rows of several samples, one sample after the other.

        embedded, features: [N, d], as for `forward`, in any float type
        positions: of the N features
        parts: for each sample its keys and values, the place of its first row in them, and which places each of its
            rows sees, bool [M, place + M]
        """
        dtype = self.fc.weight.dtype
        inputs, layer = self.fc(torch.cat((embedded.to(dtype), features.to(dtype)), dim=-1)), self._layer
        rotation = self._rotary(inputs[None], torch.tensor([list(positions)], device=inputs.device))
        queries, keys, values = (part[0] for part in layer.self_attn.project(inputs[None], *rotation))
        mixed: list[torch.Tensor] = []
        row = 0
        for kept, at, seen in parts:
            end = row + len(seen)
            own = kept.written(at, keys[:, row:end].transpose(0, 1), values[:, row:end].transpose(0, 1))
            all_keys, all_values = (part.transpose(0, 1) for part in own)
            mixed.append(
                scaled_dot_product_attention(
                    queries[None, :, row:end], all_keys[None], all_values[None], attn_mask=seen, enable_gqa=True
                )[0]
            )
            row = end
        return layer.finish(inputs, torch.cat(mixed, dim=1).transpose(0, 1).flatten(1)).to(features.dtype)

    @property
    def _layer(self) -> _Layer:
        layer = self.layers[0]
        assert isinstance(layer, _Layer)
        return layer
