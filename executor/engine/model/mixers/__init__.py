"""Layers that keep a state of each sequence in place of keys and values, or beside them.

`Mixers.of` finds the modules of a transformers model that mix tokens so, one file a kind: the module's own projections
over all rows of a step, and between them the recurrence, token by token over the step's segments
(`kernels/recurrences.py`). Compiled layers do the projections themselves. Elsewhere `take_over` gives each module
another `forward`, and whoever runs the model sets the step around its own (`state_step`). Without one, modules do as
they came.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from qpdsl.executor.engine.model.mixers.gated import GatedConvolution, GatedRecurrence
from qpdsl.executor.engine.model.mixers.linear_attention import (
    BailingDelta,
    KimiDelta,
    Lightning,
    OlmoHybridDelta,
    Qwen3NextDelta,
    Qwen35Delta,
)
from qpdsl.executor.engine.model.mixers.mixer import Mixer, state_step
from qpdsl.executor.engine.model.mixers.state_space import FalconH1Mamba2, Mamba1, Mamba2, ZambaMamba1
from qpdsl.executor.kernels.data.states import StateLayout

__all__ = ["Mixers", "is_mixer", "state_step", "take_over"]

_KINDS: tuple[Any, ...] = (
    *(GatedConvolution, GatedRecurrence),
    *(Qwen35Delta, Qwen3NextDelta, OlmoHybridDelta, KimiDelta, BailingDelta, Lightning),
    *(Mamba2, FalconH1Mamba2, Mamba1, ZambaMamba1),
)
# Attention next to them that several layers share.
_SHARED = ("Zamba2Attention", "ZambaAttention")
_BY_MODULE = {name: kind for kind in _KINDS for name in kind.MODULES}


@dataclass(frozen=True)
class Mixers:
    """The mixers of a model, in the order of their layers, and what these keep."""

    mixers: tuple[Mixer, ...]
    layout: StateLayout

    @classmethod
    def of(cls, inner: Any, config: Any, dtype: torch.dtype | None = None) -> Mixers | None:
        """Those of `inner`, a model with the configuration `config` of its text part; None where it has none.

        They compute in the `dtype`, by default that of the model. Without weights (torch's meta device) they say what
        they keep. Raises UnsupportedModel for settings that are not known.
        """
        mixers: list[Mixer] = []
        for path, module in inner.named_modules():
            if (kind := _BY_MODULE.get(type(module).__name__)) is not None:
                # The first number in the path of a module is that of its layer.
                layer = next((int(part) for part in path.split(".") if part.isdigit()), 0)
                mixers.append(kind(module, getattr(module, "layer_idx", layer), dtype or inner.dtype))
        if not mixers:
            return None
        kept = {mixer.layer: mixer.parts for mixer in mixers}
        layers = tuple(kept.get(layer, ()) for layer in range(config.num_hidden_layers))
        return cls(tuple(mixers), StateLayout(layers))


@dataclass(frozen=True)
class TakenOver(Mixers):
    """Mixers by which the modules of their model compute."""

    _hooks: tuple[RemovableHandle, ...] = ()

    def undo(self) -> None:
        """The modules compute as they came."""
        for mixer in self.mixers:
            mixer.undo()
        for hook in self._hooks:
            hook.remove()


def take_over(inner: torch.nn.Module, config: Any) -> TakenOver | None:
    """Replaces the forwards of the mixers of `inner`; where it raises as `Mixers.of` does, none is."""
    found = Mixers.of(inner, config)
    if found is None:
        return None
    for mixer in found.mixers:
        mixer.take_over()
    hooks = [
        module.register_forward_pre_hook(_number, with_kwargs=True)
        for module in inner.modules()
        if type(module).__name__ in _SHARED
    ]
    return TakenOver(found.mixers, found.layout, tuple(hooks))


def is_mixer(module: torch.nn.Module) -> bool:
    """Whether a module of transformers is one that `take_over` knows."""
    return type(module).__name__ in _BY_MODULE


def _number(module: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Attention that several layers share is told the number of the one that calls it."""
    module.layer_idx = named["layer_idx"]
