"""A mixture of experts grouped by expert: each computes the rows that chose it, and no row's bits depend on others.

The weights come from transformers' own experts modules, which keep those of all experts of a layer in one parameter and
say how they lie there (`transformers.integrations.moe`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from transformers.integrations import moe

from qpdsl.executor.engine.rowwise.uniform import Uniform, in_whole_vectors
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
        self._activate = self._activation(uniform)
        self._layers = {name: self._packed(name) for name in (first, "down_proj")}
        self._widen, self._narrow = self._layers.values()
        module.forward = self.forward

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """The sums [T, d] of what the experts `top_k_index` int64 [T, k] make of `hidden_states` [T, d], by weight.

        `top_k_weights` [T, k]. A row's experts are added in float32 and in ascending order.
        """
        chosen: defaultdict[int, list[int]] = defaultdict(list)
        for place, expert in enumerate(top_k_index.flatten().tolist()):
            # Some routers send a row that needs one expert less to a number that none has.
            if expert < self._experts:
                chosen[expert].append(place)
        hidden, weights = hidden_states.float(), top_k_weights.float().reshape(-1, 1)
        total = torch.zeros_like(hidden)
        for expert in sorted(chosen):
            places = chosen[expert]
            if len(hidden) == 1:
                total += self._expert(expert, hidden) * weights[places[0]]
                continue
            index = torch.tensor(places)
            rows = index // top_k_index.shape[1]
            out = self._expert(expert, hidden.index_select(0, rows))
            total.index_add_(0, rows, out * weights.index_select(0, index))
        return total.to(hidden_states.dtype)

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

    def _expert(self, expert: int, rows: torch.Tensor) -> torch.Tensor:
        """What one expert makes of `rows` float32 [n, d]."""
        out: torch.Tensor = self._narrow[expert](self._activate(self._widen[expert](rows)))
        return self._module.post_expert_norm(out) if self._module.has_post_expert_norm else out

    def _activation(self, uniform: Uniform) -> Callable[[torch.Tensor], torch.Tensor]:
        """What comes between the two layers of an expert."""
        module = self._module
        if not module.has_gate:
            return lambda widened: in_whole_vectors(module.act_fn, widened)
        if type(module)._apply_gate is not getattr(moe, "_default_apply_gate", None):
            return uniform.around(module._apply_gate)
        half = module.down_proj.shape[2 - module.is_transposed]

        def gated(widened: torch.Tensor) -> torch.Tensor:
            return in_whole_vectors(module.act_fn, widened[:, :half]) * widened[:, half:]

        return gated

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
