"""The checks that a model must pass at load before it may run on the paged engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import PretrainedConfig, PreTrainedModel

from qpdsl.executor.engine.batch.grouped_batch import GroupedBatch
from qpdsl.executor.engine.batch.kernel_batch import KernelBatch
from qpdsl.executor.engine.memory.kv_cache import KVCache, KVLayout
from qpdsl.executor.engine.model.heads import ValueHead
from qpdsl.executor.kernels.packed import Sizes, pack
from qpdsl.executor.kernels.plain.grouped_attention import AttentionGroup
from qpdsl.executor.requests.errors import UnsupportedModel

_TOKENS = 64


class Probe:
    """A few tokens with the logits that the model gives them by its own attention."""

    @torch.inference_mode()
    def __init__(self, model: PreTrainedModel, max_positions: int, head: ValueHead | None = None) -> None:
        """Runs the model as it came, under a `head` of its own where it has one. Raises UnsupportedModel."""
        rows = torch.arange(min(_TOKENS, max_positions), device=model.device)
        self.tokens: torch.Tensor = (rows * 7 + 3) % model.config.get_text_config().vocab_size
        try:
            output = model(input_ids=self.tokens[None], use_cache=False)
        except Exception as error:  # whatever a model's own forward may raise
            raise UnsupportedModel(f"a trial run failed: {type(error).__name__}: {error}") from error
        self.logits: torch.Tensor = output.logits[0].float() if head is None else head.dense(output[0][0])
        self.tolerance = (1e-3 if model.dtype == torch.float32 else 0.1) * max(1.0, self.logits.abs().max().item())

    def batch(self, layout: KVLayout) -> tuple[GroupedBatch, KVCache]:
        """The tokens as one chunk, and room for their KV."""
        count, device = len(self.tokens), self.tokens.device
        pages, cache = self._cache(layout)
        rows = torch.arange(count, device=device)
        starts = torch.arange(pages, device=device) * layout.layers
        slots = starts[rows // layout.page_size] * layout.page_size + rows % layout.page_size
        layers = range(layout.layers)
        group = AttentionGroup(1, count, rows[None], tuple(starts + layer for layer in layers), 0)
        by_layer = tuple(slots + layer * layout.page_size for layer in layers)
        return GroupedBatch(self.tokens, rows, by_layer, [group], None, [], count), cache

    def kernel_batch(self, layout: KVLayout) -> tuple[KernelBatch, KVCache]:
        """The same for the attention kernels."""
        count = len(self.tokens)
        pages, cache = self._cache(layout)
        rows = np.arange(count)
        table = np.arange(pages) * layout.layers
        slots = table[rows // layout.page_size] * layout.page_size + rows % layout.page_size
        sizes = Sizes(count, 1, pages, 0, 0, count, count)
        numbers = pack(sizes, [self.tokens.tolist(), rows, slots, [count], [0, count], table, []])
        return KernelBatch.of(torch.from_numpy(numbers).to(self.tokens.device), sizes), cache

    def _cache(self, layout: KVLayout) -> tuple[int, KVCache]:
        """How many pages the tokens take, and room for them."""
        pages = -(-len(self.tokens) // layout.page_size)
        buffer = torch.zeros(pages * layout.page_bytes, dtype=torch.uint8, device=self.tokens.device)
        return pages, KVCache(buffer, layout, 0)

    def distance(self, logits: torch.Tensor) -> float:
        """The largest difference from the model's own logits; infinite where a logit is no number."""
        worst = (logits - self.logits).abs().max().item()
        return worst if worst == worst else float("inf")


def refuse_batch_dependent(config: PretrainedConfig) -> None:
    """Refuses position encodings that depend on a forward's longest sequence: rows would depend on each other."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kinds = [rope, *(value for value in rope.values() if isinstance(value, dict))]
    if any(kind.get("rope_type", kind.get("type")) == "longrope" for kind in kinds):
        raise UnsupportedModel("its longrope position encoding changes with the longest sequence in the batch")


def check_calls(calls: list[dict[str, Any]], layers: int, kernels: bool) -> None:
    """Refuses a model whose attention does more, or less, than paged attention does, by `kernels` or not."""
    if sorted(call["layer"] for call in calls) != [*range(layers)]:
        reached = len({call["layer"] for call in calls})
        raise UnsupportedModel(f"paged attention reaches {reached} of its {layers} layers")
    for call in calls:
        if call["mask"] is not None:
            raise UnsupportedModel("it builds an attention mask of its own")
        if call["sinks"] is not None and not kernels:
            raise UnsupportedModel("it uses attention sinks, which only the kernels on a GPU compute")
        if call.get("is_causal") is False:
            raise UnsupportedModel("its attention is not causal")


def check_windows(config: PretrainedConfig, calls: list[dict[str, Any]]) -> None:
    """Refuses a model whose sliding windows are not given to attention; the probe is too short to show it."""
    if "chunked_attention" in (getattr(config, "layer_types", None) or []):
        raise UnsupportedModel("its layers attend within chunks, which paged attention does not")
    window = getattr(config, "sliding_window", None)
    if window is None or not getattr(config, "use_sliding_window", True):
        return
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * len(calls)
    for call in calls:
        if kinds[call["layer"]] == "sliding_attention" and call["window"] is None:
            raise UnsupportedModel(f"its layers do not tell attention of their window of {window} tokens")
