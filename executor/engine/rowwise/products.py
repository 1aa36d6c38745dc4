"""The linear layers of a model as products whose rows do not depend on each other."""

from __future__ import annotations

from typing import Any

import torch
from transformers.pytorch_utils import Conv1D

from qpdsl.executor.kernels.data.weights import FLOATS, FloatWeight, Weight
from qpdsl.executor.kernels.linear import PackedLinear
from qpdsl.executor.kernels.stored_linear import StoredLinear


class PackedLayer:
    """A linear layer `module` that computes with packed weights; its own are empty as long as it does.

    Raises LookupError where the module is anything else: some that derive from a linear layer do more.
    """

    def __init__(self, module: Any) -> None:
        kind = type(module)
        if kind is not StoredLinear and (kind not in (torch.nn.Linear, Conv1D) or not _is_plain(module.weight)):
            raise LookupError(kind.__name__)
        self._module = module
        # GPT-2's layers keep their weights [in, out].
        self._transposed = kind is Conv1D
        self._stored: Weight | None = module.stored if kind is StoredLinear else None
        bias = None if module.bias is None else module.bias.detach()
        if self._stored is not None:
            self._layer = PackedLinear(self._stored, bias)
            # None of the outputs: it still says how its weights are held.
            module.stored = self._stored.select(torch.empty(0, dtype=torch.int64))
        else:
            weight = module.weight.detach()
            self._layer = PackedLinear(FloatWeight(weight.t() if self._transposed else weight), bias)
            module.weight = torch.nn.Parameter(weight.new_empty(0), requires_grad=False)
        module.forward = self._layer.forward

    def undo(self) -> None:
        """The module has its weights again, and computes with them."""
        module, layer = self._module, self._layer
        del module.forward
        if self._stored is not None:
            module.stored = self._stored
            return
        weight = layer.rows(torch.arange(layer.out_features)).to(module.weight.dtype)
        weight = weight.t().contiguous() if self._transposed else weight
        module.weight = torch.nn.Parameter(weight, requires_grad=False)

    def keep(self) -> None:
        """Forgets what `undo` would need."""
        self._stored = None


def _is_plain(weight: torch.Tensor) -> bool:
    """Whether a weight holds floats, each for itself; other libraries have tensors of their own that say they do."""
    return type(weight.data) is torch.Tensor and weight.dtype in FLOATS
