"""The layers of a decoder as few launches on a device: four products of torch, attention, and a kernel between each.

A layer is nine launches, ten where a context is split: add and norm; the joined product of queries, keys and values;
rotations and the write into pages; attention; the product back; add and norm; the joined product of gate and `up`; the
gate; the product back. transformers' modules take about forty.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from qpdsl.executor.engine.batch.kernel_batch import KernelBatch
from qpdsl.executor.engine.memory.kv_cache import KVCache
from qpdsl.executor.engine.model.decoder import Decoder, HeadCounts, HeadNorms, Layer, Norm, Projection
from qpdsl.executor.kernels import layers, paged_attention
from qpdsl.executor.kernels.data.layer_constants import UNGATED, Addition, HeadConstants, NormWeights
from qpdsl.executor.kernels.data.paged_batch import Scoring, next_power_of_two
from qpdsl.executor.kernels.data.weights import FloatWeight, Weight

# Positions whose rotations are tabulated at load: 64 MiB for heads 128 wide. More are when a text first has them.
_MAX_POSITIONS = 1 << 17


class DeviceStack:
    """Embedding, layers and last norm of one model, in the model's type, over any KV.

    Sums are taken in float32 and rounded where they are stored: products, residuals, queries, keys and values, what was
    attended, and the gated values, each once. Nothing but the products and attention computes across rows, and these as
    `deterministic` batches ask for: with shapes that are fixed, a row's bits are its own.

    Steps with equal `Sizes` launch the same kernels on the same shapes. Nothing waits for the device but the first step
    whose texts are longer than all that were tabulated, so a step may be captured once its sizes have run.
    """

    def __init__(
        self, decoder: Decoder, embedding: Weight, device: torch.device, positions: int, *, release: bool = False
    ) -> None:
        """Lays the weights out layer by layer; with `release`, the modules that they come from are emptied on the way.

        `embedding` [V, d] is kept as it is, and has the type that all weights must have. Rotations of `positions` are
        tabulated, or of as many as is reasonable. Raises LookupError where weights are no floats, or of several types,
        or layers have experts.
        """
        if decoder.has_experts:
            raise LookupError("its layers have experts")
        self._embedding = _floats(embedding)
        self._scale, self._rotations, self._device = decoder.embedding_scale, decoder.rotations, device
        # Those that were outgrown too: captured graphs read them.
        self._tables: list[list[torch.Tensor]] = []
        self._positions = 0
        self._layers: list[_LaidOut] = []
        for index in range(decoder.layers):
            layer = decoder.layer(index)
            laid = _LaidOut(layer, decoder.shape.heads, decoder.residual_scale)
            if laid.dtype != self._embedding.dtype:
                raise LookupError("its weights are of several types")
            self._layers.append(laid)
            if release:
                decoder.release(index)
        self._norm = _norm(decoder.norm)
        self._reach(min(positions, _MAX_POSITIONS))

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """The hidden states [T, d] of `tokens` int64 [T] before the first layer."""
        rows = functional.embedding(tokens, self._embedding)
        return rows if self._scale == 1.0 else rows * self._scale

    @property
    def depth(self) -> int:
        """The number of layers."""
        return len(self._layers)

    def forward(
        self, batch: KernelBatch, cache: KVCache, exits: Sequence[int] = ()
    ) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        """Hidden states [T, d] after the last norm; and of each of `exits`, those after so many layers, before it."""
        self._reach(batch.paged.longest)
        residual, states = self.embed(batch.tokens), dict[int, torch.Tensor]()
        product: torch.Tensor | None = None
        addition: Addition | None = None
        for index, layer in enumerate(self._layers):
            # The product of the layer before it joins the residual here, so that one launch adds and takes the norm.
            hidden = layers.add_norm(residual, product, addition, layer.before_mixer)
            if index in exits:
                states[index] = residual.clone()
            product = self._attended(hidden, layer, index, batch, cache)
            hidden = layers.add_norm(residual, product, layer.after_mixer, layer.before_mlp)
            product, addition = layer.mlp(hidden), layer.after_mlp
        hidden = layers.add_norm(residual, product, addition, self._norm)
        if self.depth in exits:
            states[self.depth] = residual
        return hidden, states

    def normed(self, residual: torch.Tensor) -> torch.Tensor:
        """The last norm of hidden states [N, d] after some layer."""
        return layers.add_norm(residual.contiguous(), None, None, self._norm)

    def _attended(
        self, hidden: torch.Tensor, layer: _LaidOut, index: int, batch: KernelBatch, cache: KVCache
    ) -> torch.Tensor:
        """A layer's attention [T, d] of what is normed before it, without the bias of its last product."""
        table = None if layer.rotation is None else self._tables[-1][layer.rotation]
        joined, paged = functional.linear(hidden, layer.joined), batch.paged
        query = layers.rotate_store(joined, batch.positions, paged.slots, table, layer.heads, cache.rows, index)
        attended = paged_attention.attention(query, cache.rows, paged, index, layer.scoring, batch.deterministic)
        return functional.linear(attended.flatten(1), layer.out)

    def _reach(self, positions: int) -> None:
        """Tabulates the rotations of so many positions at least."""
        if positions <= self._positions:
            return
        self._positions = next_power_of_two(positions)
        self._tables.append([table.to(self._device) for table in self._rotations(self._positions)])


class _LaidOut:
    """One layer: weights in the model's type, with the model's own order of query heads, and constants in float32."""

    def __init__(self, layer: Layer, counts: HeadCounts, residual_scale: float) -> None:
        attention, mlp = layer.attention, layer.mlp
        if attention is None or attention.gated or mlp is None or mlp.activation in UNGATED:
            raise LookupError("its layers have other parts than attention and a gated MLP")
        # Where the query heads of the model stand among those of the description.
        order = torch.arange(counts.fold * counts.kv_heads).view(counts.fold, -1).t().flatten()
        queries = (order[:, None] * counts.dim + torch.arange(counts.dim)).flatten()
        others = torch.arange(len(queries), attention.joined.weight.shape[0])
        self.joined = _floats(attention.joined.weight.select(torch.cat((queries, others))))
        self.out = _floats(attention.out.weight.select_inputs(queries))
        self.widen, self.down = _floats(mlp.widen.weight), _floats(mlp.down.weight)
        bias = attention.joined.bias
        self.heads = HeadConstants(
            counts.fold * counts.kv_heads,
            counts.kv_heads,
            counts.dim,
            None if bias is None else bias[torch.cat((queries, others))],
            None if attention.norms is None else _head_norms(attention.norms, order),
            0.0 if attention.norms is None else attention.norms.epsilon,
            attention.norms is not None and attention.norms.whole,
        )
        self.rotation = attention.rotation
        self.scoring = Scoring(attention.scale, attention.window, attention.softcap)
        self.before_mixer, self.before_mlp = _norm(layer.before_mixer), _norm(layer.before_mlp)
        self.after_mixer = _addition(attention.out, layer.after_mixer, residual_scale)
        self.after_mlp = _addition(mlp.down, layer.after_mlp, residual_scale)
        self._widen_bias, self._activation = mlp.widen.bias, mlp.activation

    @property
    def dtype(self) -> torch.dtype | None:
        """The type of the weights; None where they are of several."""
        types = {weight.dtype for weight in (self.joined, self.out, self.widen, self.down)}
        return types.pop() if len(types) == 1 else None

    def mlp(self, hidden: torch.Tensor) -> torch.Tensor:
        """The MLP [T, d] of what is normed before it, without the bias of its last product."""
        widened = functional.linear(hidden, self.widen)
        return functional.linear(layers.gate(widened, self._widen_bias, self._activation), self.down)


def _floats(weight: Weight) -> torch.Tensor:
    if not isinstance(weight, FloatWeight):
        raise LookupError(f"its weights are stored as {weight.kind}")
    return weight.values.contiguous()


def _norm(norm: Norm | None) -> NormWeights | None:
    return None if norm is None else NormWeights(norm.weight.contiguous(), norm.epsilon)


def _head_norms(norms: HeadNorms, order: torch.Tensor) -> torch.Tensor:
    """The weights float32 [heads + kv_heads, dim] of the queries in this `order`, and then of the keys."""
    queries, keys = norms.weight[:-1].flatten(0, 1), norms.weight[-1]
    return torch.cat((queries[order], keys)).contiguous()


def _addition(product: Projection, norm: Norm | None, scale: float) -> Addition:
    return Addition(product.bias, _norm(norm), scale)
