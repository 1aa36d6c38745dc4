"""A lean stack whose layers run compiled kernels between the matrix products."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from qpdsl.executor.engine.batch.kernel import KernelBatch
from qpdsl.executor.engine.memory.kv_cache import KVCache, KVLayout
from qpdsl.executor.engine.model.lean_stack import LeanLayer, LeanStack, pieces
from qpdsl.executor.kernels.llvm.cache import HeadShape
from qpdsl.executor.kernels.llvm.layer import Activation, LayerKernels, LayerShape
from qpdsl.executor.kernels.llvm.sample import RowSampler
from qpdsl.executor.kernels.plain.linear import PackedLinear

# By the names of transformers' modules.
_ACTIVATIONS: dict[str, Activation] = {
    "SiLU": "silu",
    "SiLUActivation": "silu",
    "GELUTanh": "gelu_tanh",
}


class NativeStack:
    """Embedding, layers and last norm of one model in float32 on a CPU, over KV in float32 or in eight bits."""

    def __init__(self, lean: LeanStack, layout: KVLayout, vocabulary: int | None) -> None:
        """Raises LookupError where the kernels cannot be compiled for the model or the machine.

        With a `vocabulary`, `sampler` draws rows of as many logits.
        """
        layers = lean.layers
        first = layers[0]
        activation = _ACTIVATIONS.get(first.activation_kind)
        shapes = {(layer.intermediate, layer.head_epsilon, layer.activation_kind) for layer in layers}
        epsilons = {norm.epsilon for layer in layers for norm in (layer.before_attention, layer.before_mlp)}
        if activation is None or len(shapes) > 1 or epsilons != {lean.norm.epsilon}:
            raise LookupError("no kernel")
        self._lean = lean
        self.sampler = None if vocabulary is None else RowSampler(vocabulary)
        self._kernels = LayerKernels(
            LayerShape(
                HeadShape(first.fold, first.kv_heads, first.dim, layout.page_size, layout.kind),
                lean.norm.weight.numel(),
                first.intermediate,
                activation,
                lean.norm.epsilon,
                first.head_epsilon,
                tuple((layer.scored.scaling, layer.scored.window) for layer in layers),
            )
        )
        self._room = _Room(first, 0, lean.norm.weight.numel())

    @property
    def middle(self) -> int:
        """The number of layers in the first half, after which `via amortized` may leave; 0 where there is none."""
        return self._lean.middle

    @property
    def linears(self) -> Iterator[PackedLinear]:
        return self._lean.linears

    def forward(self, batch: KernelBatch, cache: KVCache, middle: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Hidden states [T, d] after the last norm; with `middle`, also those of the middle layer after that norm."""
        lean = self._lean
        turns = lean.turns(batch.paged.longest)
        hidden = lean.embed(batch.tokens)
        count = hidden.shape[0]
        if self._room.rows != count:
            self._room = _Room(lean.layers[0], count, hidden.shape[1])
        kept = None
        for index, layer in enumerate(lean.layers):
            self._run(layer, hidden, turns, index, batch, cache)
            if middle and index + 1 == lean.middle:
                kept = self._normed(hidden)
        return self._normed(hidden), kept

    def _normed(self, hidden: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(hidden)
        self._kernels.norm(hidden, self._lean.norm.weight, out)
        return out

    def _run(
        self,
        layer: LeanLayer,
        hidden: torch.Tensor,
        turns: torch.Tensor,
        index: int,
        batch: KernelBatch,
        cache: KVCache,
    ) -> None:
        """One decoder layer over hidden states [T, d], which it changes in place."""
        kernels, room, rows = self._kernels, self._room, cache.rows.data
        kernels.norm(hidden, layer.before_attention.weight, room.normed)
        layer.qkv.into(room.normed, room.joined)
        kernels.store(room.joined, turns, batch.positions, batch.paged, rows, layer.head_norms, index)
        kernels.attend(room.joined, batch.paged, rows, room.attended, index)
        layer.out.add_to(hidden, room.attended)
        for part, normed, widened, gated in room.mlp(hidden):
            kernels.norm(part, layer.before_mlp.weight, normed)
            layer.gate_up.into(normed, widened)
            kernels.gate(widened, gated)
            layer.down.add_to(part, gated)


class _Room:
    """What a step of `rows` rows computes between one product and the next; steps of as many rows use it again."""

    def __init__(self, layer: LeanLayer, rows: int, size: int) -> None:
        self.rows = rows
        queries = layer.out.in_features
        self.normed = torch.empty(rows, size)
        self.joined = torch.empty(rows, layer.qkv.out_features)
        # Attention leaves padding rows alone: whatever finite numbers they hold, nobody reads what becomes of them.
        self.attended = torch.zeros(rows, queries)
        most = pieces(self.normed)[0].shape[0]
        self._widened = torch.empty(most, 2 * layer.intermediate)
        self._gated = torch.empty(most, layer.intermediate)

    def mlp(self, hidden: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Pieces of `hidden` [T, d], each with room for its norm, for gate and up, and for what becomes of them."""
        found = []
        for part, normed in zip(pieces(hidden), pieces(self.normed), strict=True):
            count = part.shape[0]
            found.append((part, normed, self._widened[:count], self._gated[:count]))
        return found
