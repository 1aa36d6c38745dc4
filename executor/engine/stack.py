"""A transformers model's own layers, with attention replaced.

Attention is registered through transformers' attention interface and handed the batch as a keyword argument of the
forward, so nothing is process-wide but a stateless function.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface, PreTrainedModel

from qpdsl.executor.engine.batch import Batch
from qpdsl.executor.engine.kv import KVCache
from qpdsl.executor.engine.middle import MiddleLayer
from qpdsl.executor.engine.unsupported import UnsupportedModel
from qpdsl.executor.kernels.attention import paged_attention, write_kv

ATTENTION = "qpdsl_paged"


@dataclass(slots=True)
class _Call:
    """What one forward hands to each attention layer. `seen` records what the calls were given, at load time."""

    cache: KVCache
    batch: Batch
    seen: list[dict[str, Any]] | None = None


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    qpdsl: _Call | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function: query [1, H, T, D], key and value [1, KV, T, D], positions already rotated in."""
    if qpdsl is None:
        raise UnsupportedModel("its layers do not hand a forward's keyword arguments on to attention")
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if qpdsl.seen is not None:
        known = {"layer": layer, "mask": attention_mask, "scaling": scale, "window": sliding_window, "softcap": softcap}
        qpdsl.seen.append({**others, **known})
    rows, batch = qpdsl.cache.rows, qpdsl.batch
    write_kv(rows, torch.stack((key[0], value[0])).permute(2, 0, 1, 3), batch.slots[layer])
    out = paged_attention(query[0].transpose(0, 1), rows, layer, batch.groups, scale, sliding_window, softcap)
    return out[None], None


AttentionInterface.register(ATTENTION, _attend)


class ModuleStack:
    """Everything of a model but its head, as transformers wrote it. Raises UnsupportedModel where that cannot be."""

    def __init__(self, model: PreTrainedModel, layers: int) -> None:
        try:
            model.set_attn_implementation(ATTENTION)
        except ValueError as error:
            raise UnsupportedModel(f"its attention cannot be replaced: {error}") from error
        inner = model.base_model
        if inner is model:
            raise UnsupportedModel("it has no inner model apart from its head")
        self.inner: torch.nn.Module = inner
        self._middle = MiddleLayer.of(inner, layers)

    @property
    def middle(self) -> int:
        """The number of layers in the first half, after which `via amortized` may leave; 0 where it cannot."""
        return 0 if self._middle is None else self._middle.depth

    def probe(self, batch: Batch, cache: KVCache) -> tuple[torch.Tensor, list[dict[str, Any]]]:
        """The hidden states [T, d] of a forward, and what each call of attention was given."""
        seen: list[dict[str, Any]] = []
        return self._run(batch, _Call(cache, batch, seen)), seen

    def forward(self, batch: Batch, cache: KVCache, middle: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Hidden states [T, d] after the last norm; with `middle`, also those of the middle layer after that norm."""
        call = _Call(cache, batch)
        if not middle or self._middle is None:
            return self._run(batch, call), None
        with self._middle.kept() as kept:
            hidden = self._run(batch, call)
        return hidden, self._middle.norm(kept[0][0])

    def _run(self, batch: Batch, call: _Call) -> torch.Tensor:
        tokens, positions = batch.tokens[None], batch.positions[None]
        hidden: torch.Tensor = self.inner(input_ids=tokens, position_ids=positions, use_cache=False, qpdsl=call)[0]
        return hidden[0]
