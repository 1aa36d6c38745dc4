"""A mixture of experts grouped by expert: each computes the rows that chose it, and no row's bits depend on others.

The weights come from transformers' own experts modules, which keep those of all experts of a layer in one parameter and
say how they lie there (`transformers.integrations.moe`).
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch

from qpdsl.executor.engine.rowwise.uniform import Uniform
from qpdsl.executor.kernels.data.weights import FLOATS, FloatWeight
from qpdsl.executor.kernels.linear import PackedLinear

# What such a module says of itself.
_FACTS = ("has_gate", "has_bias", "has_post_expert_norm", "is_transposed", "num_experts", "down_proj", "_apply_gate")


class GroupedExperts:
    """A module of E experts that computes by expert, with packed weights; its own are empty as long as it does.

    Raises LookupError where the module is not built as transformers' experts are.
    """

    def __init__(self, module: Any, uniform: Uniform) -> None:
        if not all(hasattr(module, fact) for fact in _FACTS):
            raise LookupError(type(module).__name__)
        first = "gate_up_proj" if module.has_gate else "up_proj"
        if any(part.dim() != 3 or part.dtype not in FLOATS for part in (getattr(module, first), module.down_proj)):
            raise LookupError(first)
        self._module = module
        self._experts: int = module.num_experts
        self._layers = {name: self._packed(name) for name in (first, "down_proj")}
        self._widen, self._narrow = self._layers.values()
        self._activate = uniform.around(module._apply_gate if module.has_gate else module.act_fn)
        module.forward = self.forward

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """The sums [T, d] of what the experts `top_k_index` int64 [T, k] make of `hidden_states` [T, d], by weight.

        `top_k_weights` [T, k]. A row's experts are added in float32 and in ascending order.
        """
        chosen: defaultdict[int, list[int]] = defaultdict(list)
        for place, expert in enumerate(top_k_index.flatten().tolist()):
            chosen[expert].append(place)
        width = top_k_index.shape[1]
        weights = top_k_weights.reshape(-1, 1)
        total = torch.zeros(hidden_states.shape, dtype=torch.float32)
        for expert in sorted(chosen):
            if expert >= self._experts:
                # Some routers send a row there that needs one expert less.
                continue
            places = torch.tensor(chosen[expert])
            rows = places // width
            out = self._narrow[expert](self._activate(self._widen[expert](hidden_states.index_select(0, rows))))
            if self._module.has_post_expert_norm:
                out = self._module.post_expert_norm(out)
            total.index_add_(0, rows, (out * weights.index_select(0, places)).float())
        return total.to(hidden_states.dtype)

    @property
    def layers(self) -> list[PackedLinear]:
        return [*self._widen, *self._narrow]

    def undo(self) -> None:
        """The module has its weights again, and computes with them."""
        module = self._module
        del module.forward
        for name, layers in self._layers.items():
            weights = torch.stack([layer.rows(torch.arange(layer.out_features)) for layer in layers])
            if module.is_transposed:
                weights = weights.transpose(1, 2).contiguous()
            dtype = getattr(module, name).dtype
            setattr(module, name, torch.nn.Parameter(weights.to(dtype), requires_grad=False))

    def _packed(self, name: str) -> list[PackedLinear]:
        """The layer `name` of each expert; the module's parameter is empty afterwards."""
        module = self._module
        weights = getattr(module, name).detach()
        biases = getattr(module, f"{name}_bias").detach() if module.has_bias else [None] * len(weights)
        layers = [
            PackedLinear(FloatWeight(weight.t() if module.is_transposed else weight), bias)
            for weight, bias in zip(weights, biases, strict=True)
        ]
        setattr(module, name, torch.nn.Parameter(weights.new_empty(0), requires_grad=False))
        return layers
