"""A lean stack whose layers run compiled kernels between the matrix products."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from qpdsl.executor.engine.batch.kernel_batch import KernelBatch
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
                tuple((layer.scale.scaling, layer.scale.window) for layer in layers),
            )
        )
        self._workspace = _Workspace(first, 0, lean.norm.weight.numel())

    @property
    def exit_depth(self) -> int:
        """See `LeanStack.exit_depth`."""
        return self._lean.exit_depth

    @property
    def linears(self) -> Iterator[PackedLinear]:
        return self._lean.linears

    def forward(self, batch: KernelBatch, cache: KVCache, early_exit: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Hidden states [T, d] after the last norm; with `early_exit`, also those of the exit layer after that norm."""
        lean = self._lean
        rotations = lean.rotations(batch.paged.longest)
        residual = lean.embed(batch.tokens)
        count = residual.shape[0]
        if self._workspace.rows != count:
            self._workspace = _Workspace(lean.layers[0], count, residual.shape[1])
        exit_hidden = None
        for index, layer in enumerate(lean.layers):
            self._run(layer, residual, rotations, index, batch, cache)
            if early_exit and index + 1 == lean.exit_depth:
                exit_hidden = self._normed(residual)
        return self._normed(residual), exit_hidden

    def _normed(self, residual: torch.Tensor) -> torch.Tensor:
        hidden = torch.empty_like(residual)
        self._kernels.norm(residual, self._lean.norm.weight, hidden)
        return hidden

    def _run(
        self,
        layer: LeanLayer,
        residual: torch.Tensor,
        rotations: torch.Tensor,
        index: int,
        batch: KernelBatch,
        cache: KVCache,
    ) -> None:
        """One decoder layer over the residual stream [T, d], which it changes in place."""
        kernels, space, rows = self._kernels, self._workspace, cache.rows.data
        kernels.norm(residual, layer.before_attention.weight, space.normed)
        layer.qkv.into(space.normed, space.qkv)
        kernels.store(space.qkv, rotations, batch.positions, batch.paged, rows, layer.head_norms, index)
        kernels.attend(space.qkv, batch.paged, rows, space.attended, index)
        layer.out.add_to(residual, space.attended)
        for piece, normed, widened, gated in space.mlp(residual):
            kernels.norm(piece, layer.before_mlp.weight, normed)
            layer.gate_up.into(normed, widened)
            kernels.gate(widened, gated)
            layer.down.add_to(piece, gated)


class _Workspace:
    """Buffers for what a step of `rows` rows computes between the products; steps of as many rows use them again."""

    def __init__(self, layer: LeanLayer, rows: int, size: int) -> None:
        self.rows = rows
        self.normed = torch.empty(rows, size, dtype=torch.float32)
        self.qkv = torch.empty(rows, layer.qkv.out_features, dtype=torch.float32)
        # Attention does not write padding rows: they hold finite numbers, and no result of them is read.
        self.attended = torch.zeros(rows, layer.out.in_features, dtype=torch.float32)
        most = pieces(self.normed)[0].shape[0]
        self._widened = torch.empty(most, 2 * layer.intermediate, dtype=torch.float32)
        self._gated = torch.empty(most, layer.intermediate, dtype=torch.float32)

    def mlp(self, residual: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Pieces of `residual` [T, d], each with the buffers of its norm, of gate and up, and of their product."""
        buffers = []
        for piece, normed in zip(pieces(residual), pieces(self.normed), strict=True):
            count = piece.shape[0]
            buffers.append((piece, normed, self._widened[:count], self._gated[:count]))
        return buffers
