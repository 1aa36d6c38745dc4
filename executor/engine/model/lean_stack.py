"""The layers of the Llama family without their modules.

transformers' module stack takes some 100 µs a layer in Python and small operators, more than the arithmetic of a small
model. Here a layer is a dozen operators on weights laid out for them at load:

- query, key and value are one product, gate and up another; the products add to the residual stream themselves;
- query heads are ordered so that attention reads and writes them in place;
- the pairs of numbers that rotary embeddings rotate lie side by side as complex numbers, so a rotation is one
  multiplication in place. Keys are stored in that order; no other code reads them.

A stack is only used where its logits on the probe tokens are the model's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import embedding, silu
from transformers import PretrainedConfig

from qpdsl.executor.engine.batch.grouped_batch import GroupedBatch
from qpdsl.executor.engine.memory.kv_cache import KVCache
from qpdsl.executor.kernels.plain.grouped_attention import folded_attention, write_kv
from qpdsl.executor.kernels.plain.linear import PackedLinear

_FAMILIES = {"llama", "mistral", "qwen2", "qwen3", "gemma"}
# Position encodings that are a table: they depend on the position alone.
_ROTARY = {"default", "linear", "llama3", "yarn"}
_LEAST_POSITIONS = 1024
# With more rows, the values between two products would not fit into a core's own cache.
_MLP_ROWS = 256


@dataclass(frozen=True, slots=True)
class AttentionScale:
    """How a layer's attention is called: the factor of its scores, and its sliding window in tokens."""

    scaling: float
    window: int | None


class LeanStack:
    """Embedding, layers and last norm of one model in float32 on a CPU."""

    def __init__(self, inner: Any, config: PretrainedConfig, scales: list[AttentionScale]) -> None:
        """Holds no weights yet: `check` makes layers one by one to run them, `pack` makes all and empties the modules.

        Raises LookupError where the model is not built as this stack is.
        """
        heads = config.num_attention_heads
        kv_heads = getattr(config, "num_key_value_heads", None) or heads
        dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
        kind = rope.get("rope_type", rope.get("type", "default"))
        if config.model_type not in _FAMILIES or kind not in _ROTARY or dim % 2:
            raise LookupError(config.model_type)
        self._inner = inner
        self._shape = (heads // kv_heads, kv_heads, dim)
        self._scales = scales
        self._embedding: torch.Tensor = self._inner.embed_tokens.weight
        self._gemma = config.model_type == "gemma"
        self._scale = config.hidden_size**0.5 if self._gemma else None
        self.norm = RmsNorm(self._inner.norm, self._gemma)
        self.layers: list[LeanLayer] = []
        self._rotations = torch.empty(0, dtype=torch.float32)
        if len(self._inner.layers) != len(scales):
            raise LookupError("layers")
        self._grow(_LEAST_POSITIONS)

    @property
    def exit_depth(self) -> int:
        """The number of layers up to the exit layer, the middle one; 0 where there is none."""
        return len(self._scales) // 2

    @property
    def linears(self) -> Iterator[PackedLinear]:
        for layer in self.layers:
            yield from layer.linears

    def check(self, batch: GroupedBatch, cache: KVCache) -> torch.Tensor:
        """The hidden states [T, d] of a forward whose layers are made one by one and thrown away."""
        return self._run(batch, cache, (self._layer(index) for index in range(len(self._scales))), 0)[0]

    def pack(self) -> None:
        """Lays out the weights of every layer and empties the modules that they came from."""
        for index, module in enumerate(self._inner.layers):
            self.layers.append(self._layer(index))
            for part in module.modules():
                if isinstance(part, torch.nn.Linear):
                    part.weight = torch.nn.Parameter(torch.empty(0), requires_grad=False)

    def forward(
        self, batch: GroupedBatch, cache: KVCache, early_exit: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Hidden states [T, d] after the last norm; with `early_exit`, also those of the exit layer after that norm."""
        return self._run(batch, cache, self.layers, self.exit_depth if early_exit else 0)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """The hidden states [T, d] before the first layer, of `tokens` int64 [T]."""
        hidden = embedding(tokens, self._embedding)
        return hidden if self._scale is None else hidden.mul_(self._scale)

    def rotations(self, longest: int) -> torch.Tensor:
        """The rotation of each pair at each position, complex64 [P, 1, D/2]; P is `longest` or more."""
        if longest > len(self._rotations):
            self._grow(longest)
        return self._rotations

    def _run(
        self, batch: GroupedBatch, cache: KVCache, layers: Iterable[LeanLayer], exit_depth: int
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        rotations = self.rotations(batch.longest).index_select(0, batch.positions)
        residual = self.embed(batch.tokens)
        exit_hidden = None
        for index, layer in enumerate(layers):
            layer.run(residual, rotations, index, batch, cache)
            if index + 1 == exit_depth:
                exit_hidden = self.norm(residual)
        return self.norm(residual), exit_hidden

    def _layer(self, index: int) -> LeanLayer:
        return LeanLayer(self._inner.layers[index], self._shape, self._scales[index], self._gemma)

    def _grow(self, positions: int) -> None:
        """Tabulates the rotations of the positions below a power of two, complex64 [P, 1, D/2]. Raises LookupError."""
        count = 1 << (positions - 1).bit_length()
        half = self._shape[2] // 2
        position_ids = torch.arange(count)[None]
        cos, sin = self._inner.rotary_emb(torch.empty(0, dtype=torch.float32), position_ids=position_ids)
        if cos.shape[-1] != 2 * half or not torch.equal(cos[..., :half], cos[..., half:]):
            raise LookupError("rotary")
        self._rotations = torch.complex(cos[0, :, :half].contiguous(), sin[0, :, :half].contiguous())[:, None]


class RmsNorm:
    """RMS norm over the last dimension."""

    def __init__(self, module: Any, gemma: bool) -> None:
        self.weight = (1.0 + module.weight if gemma else module.weight).detach()
        self.shape = list(self.weight.shape)
        self.epsilon: float = module.eps if gemma else module.variance_epsilon

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.rms_norm(hidden, self.shape, self.weight, self.epsilon)


class LeanLayer:
    """One decoder layer over the residual stream [T, d], which it changes in place."""

    def __init__(self, module: Any, shape: tuple[int, int, int], scale: AttentionScale, gemma: bool) -> None:
        attention, mlp = module.self_attn, module.mlp
        self.fold, self.kv_heads, self.dim = fold, kv_heads, dim = shape
        self.scale = scale
        self.before_attention = RmsNorm(module.input_layernorm, gemma)
        self.before_mlp = RmsNorm(module.post_attention_layernorm, gemma)
        pairs = torch.arange(dim).view(2, -1).t().flatten()
        # Heads as [KV, G, D] to [G, KV, D]; within a head, the two halves to pairs.
        queries = torch.arange(kv_heads * fold * dim).view(kv_heads, fold, dim).transpose(0, 1)
        keys = torch.arange(kv_heads * dim).view(kv_heads, dim)
        parts = (
            (attention.q_proj, queries[..., pairs].flatten()),
            (attention.k_proj, keys[:, pairs].flatten()),
            (attention.v_proj, keys.flatten()),
        )
        self.qkv = _joined(parts)
        out = attention.o_proj
        self.out = PackedLinear(out.weight[:, queries.flatten()], out.bias)
        self.intermediate: int = mlp.gate_proj.out_features
        columns = torch.arange(self.intermediate)
        self.gate_up = _joined(((mlp.gate_proj, columns), (mlp.up_proj, columns)))
        self.down = PackedLinear(mlp.down_proj.weight, mlp.down_proj.bias)
        self.activation_kind = type(mlp.act_fn).__name__
        self.activation = silu if self.activation_kind in ("SiLU", "SiLUActivation") else mlp.act_fn
        self.head_norms: torch.Tensor | None = None
        self.head_epsilon: float | None = None
        if hasattr(attention, "q_norm"):
            q_norm, k_norm = RmsNorm(attention.q_norm, gemma), RmsNorm(attention.k_norm, gemma)
            self.head_epsilon = q_norm.epsilon
            weights = [q_norm.weight[pairs]] * (fold * kv_heads) + [k_norm.weight[pairs]] * kv_heads
            self.head_norms = torch.stack(weights)

    @property
    def linears(self) -> tuple[PackedLinear, ...]:
        return (self.qkv, self.out, self.gate_up, self.down)

    def run(
        self, residual: torch.Tensor, rotations: torch.Tensor, index: int, batch: GroupedBatch, cache: KVCache
    ) -> None:
        """Adds the layer's attention and MLP to `residual` [T, d]. `index` is its number, `rotations` [T, 1, D/2]."""
        count, fold, kv_heads, dim = residual.shape[0], self.fold, self.kv_heads, self.dim
        queries, rotated = fold * kv_heads * dim, (fold + 1) * kv_heads * dim
        qkv = self.qkv(self.before_attention(residual))
        if self.head_norms is not None:
            heads = qkv[:, :rotated].view(count, -1, dim)
            torch.mul(torch.rms_norm(heads, [dim], None, self.head_epsilon), self.head_norms, out=heads)
        torch.view_as_complex(qkv[:, :rotated].view(count, -1, dim // 2, 2)).mul_(rotations)
        write_kv(cache.rows, qkv[:, queries:].view(count, 2, kv_heads, dim), batch.slots[index])
        query = qkv[:, :queries].view(count, fold, kv_heads, dim)
        scale = self.scale
        attended = folded_attention(query, cache.rows, index, batch.groups, scale.scaling, scale.window)
        self.out.add_to(residual, attended.reshape(count, queries))
        for piece in pieces(residual):
            # The halves are strided, so that a row's last numbers never share a vector with another row's first.
            widened = self.gate_up(self.before_mlp(piece))
            gate = self.activation(widened[:, : self.intermediate])
            self.down.add_to(piece, gate.mul_(widened[:, self.intermediate :]))


def pieces(rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The rows [T, d] in even pieces, none of them a single row."""
    count = rows.shape[0]
    return (rows,) if count <= _MLP_ROWS else rows.tensor_split(-(-count // _MLP_ROWS))


def _joined(parts: Iterable[tuple[Any, torch.Tensor]]) -> PackedLinear:
    """Several linear modules of one input as one product, with the given outputs of each. Raises LookupError."""
    weights, biases = [], []
    for module, order in parts:
        if not isinstance(module, torch.nn.Linear):
            raise LookupError(type(module).__name__)
        weights.append(module.weight[order])
        biases.append(module.bias if module.bias is None else module.bias[order])
    present = [bias for bias in biases if bias is not None]
    if present and len(present) < len(biases):
        raise LookupError("bias")
    return PackedLinear(torch.cat(weights), torch.cat(present) if present else None)
