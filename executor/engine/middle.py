"""The middle layer of a model, where `via amortized` may leave it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class MiddleLayer:
    """The layer in the middle of a model, with `depth` layers up to it, and the norm that stands before its head."""

    depth: int
    layer: torch.nn.Module
    norm: torch.nn.Module

    @classmethod
    def of(cls, inner: torch.nn.Module, layers: int) -> MiddleLayer | None:
        """None where the model names its parts as no family known here does."""
        stack = getattr(inner, "layers", None)
        norm = getattr(inner, "norm", None) or getattr(inner, "final_layer_norm", None)
        if not isinstance(stack, torch.nn.ModuleList) or len(stack) != layers or layers < 2 or norm is None:
            return None
        return cls(layers // 2, stack[layers // 2 - 1], norm)

    @contextmanager
    def kept(self) -> Iterator[list[torch.Tensor]]:
        """A list that receives what the layer puts out [1, T, d] in a forward inside the block."""
        kept: list[torch.Tensor] = []

        def keep(module: torch.nn.Module, given: object, output: torch.Tensor | tuple[torch.Tensor, ...]) -> None:
            kept.append(output[0] if isinstance(output, tuple) else output)

        handle = self.layer.register_forward_hook(keep)
        try:
            yield kept
        finally:
            handle.remove()
