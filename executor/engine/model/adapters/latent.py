"""Multi-head latent attention (DeepSeek-V2, 2024, section 2.1), absorbed.

What a token keeps is a latent vector c and a rotated key r that all heads share. A head's key is [Wk c | r] and its
value Wv c, so q·k = (Wkᵀ q)·c + q_r·r, and Σ p Wv c = Wv Σ p c. So queries are taken to the latent space, attend to
[c | r] as the one key of all heads, whose first numbers are the value, and what was attended is taken back. Nothing is
expanded, whatever the size of the batch: the two forms differ in their bits.
"""

from __future__ import annotations

from typing import Any

import torch

from qpdsl.executor.engine.model.adapters.attend import LATENT
from qpdsl.executor.engine.model.heads import stored_weight


class LatentHeads(torch.nn.Module):
    """Wkᵀ and Wv of each head, as linear layers, of the `weight` [H · (nope + v), rank] that expands latent vectors."""

    def __init__(self, weight: torch.Tensor, heads: int, nope: int) -> None:
        super().__init__()
        parts = torch.unflatten(weight, 0, (heads, -1))
        self._nope = nope
        self.keys = torch.nn.ModuleList(_linear(part[:nope].t()) for part in parts)
        self.values = torch.nn.ModuleList(_linear(part[nope:]) for part in parts)

    def narrowed(self, query: torch.Tensor) -> torch.Tensor:
        """Queries [1, H, T, nope + rope] as [1, H, T, rank + rope]."""
        nope, rope = query[0, ..., : self._nope], query[0, ..., self._nope :]
        latent = torch.stack([layer(part) for layer, part in zip(self.keys, nope, strict=True)])
        return torch.cat((latent, rope), dim=-1)[None]

    def widened(self, attended: torch.Tensor) -> torch.Tensor:
        """What was attended [T, H, rank] as [T, H, v]."""
        parts = attended.unbind(1)
        return torch.stack([layer(part) for layer, part in zip(self.values, parts, strict=True)], dim=1)


def adapt(module: Any) -> None:
    """Of a module with transformers' `expand_kv`. Its `kv_b_proj` is dropped."""
    stored = stored_weight(module.kv_b_proj)
    if stored is None or module.kv_b_proj.bias is not None:
        raise LookupError("the projection of its latent vectors is not plain")
    weight = module.kv_b_proj.weight if isinstance(module.kv_b_proj, torch.nn.Linear) else stored.dequantized()
    module.add_module(LATENT, LatentHeads(weight.detach(), module.num_heads, module.qk_nope_head_dim))
    module.kv_b_proj = None
    module.expand_kv = _unexpanded


def _unexpanded(latent: torch.Tensor, rotated: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The key and the value of all heads: [1, 1, T, rank + rope] and [1, 1, T, rank]."""
    return torch.cat((latent, rotated), dim=-1), latent


def _linear(weight: torch.Tensor) -> torch.nn.Linear:
    outputs, inputs = weight.shape
    layer = torch.nn.Linear(inputs, outputs, bias=False, device="meta")
    layer.weight = torch.nn.Parameter(weight.contiguous(), requires_grad=False)
    return layer
