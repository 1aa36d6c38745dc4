"""How adapters and attention talk: the function that an adapter calls, and what it leaves at a module."""

from __future__ import annotations

from typing import Protocol

import torch

from qpdsl.executor.kernels.data.paged_batch import Alibi

# Attributes of an attention module. Queries are multiplied by what the first makes of positions int64 [T]: float32 [T].
QUERY_SCALE = "qpdsl_query_scale"
# The second, a `LatentHeads`, takes queries to the latent space, and what was attended back.
LATENT = "qpdsl_latent"


class Attend(Protocol):
    """Attention of a module's layer, registered with transformers as `module_stack.ATTENTION`."""

    def __call__(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        sliding_window: int | None = None,
        *,
        alibi: Alibi | None = None,
    ) -> tuple[torch.Tensor, None]:
        """Query [1, H, T, D], key [1, KV, T, D] and value [1, KV, T, V] give [1, T, H, V]."""
        ...
