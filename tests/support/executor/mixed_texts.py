"""Runs a transformers model with its mixers replaced, in steps of segments, without the engine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from inspect import signature
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AttentionInterface, AutoModelForCausalLM, PreTrainedModel

from qpdsl.executor.engine.model.mixers import state_step, take_over
from qpdsl.executor.engine.model.module_stack import inner_model
from qpdsl.executor.kernels.data.states import FRESH, StateRows, StateSegment, StateStep

_ATTENTION = "by_segments"
BASE = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.25,
}


def tiny_model(kind: str, dtype: torch.dtype = torch.float32, **changes: Any) -> PreTrainedModel:
    """A model of random weights, the same each time."""
    if kind not in CONFIG_MAPPING:
        pytest.skip("this release of transformers does not have the family")
    config = CONFIG_MAPPING[kind](**{**BASE, **changes})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data.add_((torch.randn(parameter.shape, generator=generator) * 0.1).to(dtype))
    return model


class MixedTexts:
    """Texts of one model, each run on by any number of tokens in a step, with its states and its keys and values."""

    def __init__(self, model: PreTrainedModel, blocks: int = 8) -> None:
        self.inner = inner_model(model)
        mixers = take_over(self.inner, model.config.get_text_config())
        assert mixers is not None
        self.mixers, self.layout = mixers, mixers.layout
        # What a block held before must not matter.
        with torch.inference_mode():
            buffer = torch.full((blocks * self.layout.block_bytes,), 0xFF, dtype=torch.uint8)
            self.rows = StateRows(buffer, self.layout)
        self._kept: defaultdict[tuple[int, int], list[torch.Tensor]] = defaultdict(list)
        self._segments: tuple[StateSegment, ...] = ()
        AttentionInterface.register(_ATTENTION, self._attend)
        model.config._attn_implementation = _ATTENTION
        self._takes_positions = "position_ids" in signature(self.inner.forward).parameters

    def step(self, parts: Sequence[tuple[int, torch.Tensor]], begins: Sequence[int]) -> list[torch.Tensor]:
        """The hidden states [n, d] of the next tokens int64 [n] of texts, each in the block of its number.

        `begins`: how many of a text's tokens were run before; 0 begins it anew.
        """
        segments = []
        row = 0
        for (text, tokens), begin in zip(parts, begins, strict=True):
            segments.append(StateSegment(text if begin else FRESH, text, row, len(tokens)))
            row += len(tokens)
            if not begin:
                for key in [key for key in self._kept if key[0] == text]:
                    del self._kept[key]
        places = [torch.arange(begin, begin + len(part)) for (_, part), begin in zip(parts, begins, strict=True)]
        hidden = self.run(torch.cat([tokens for _, tokens in parts]), torch.cat(places), segments)
        return [*hidden.split([len(tokens) for _, tokens in parts])]

    @torch.no_grad()
    def run(self, tokens: torch.Tensor, places: torch.Tensor, segments: Sequence[StateSegment]) -> torch.Tensor:
        """The hidden states [T, d] of a step."""
        self._segments = tuple(segments)
        with state_step(StateStep(self.rows, self._segments)):
            positions = {"position_ids": places[None]} if self._takes_positions else {}
            hidden: torch.Tensor = self.inner(input_ids=tokens[None], **positions, use_cache=False)[0]
        return hidden[0]

    def whole(self, tokens: torch.Tensor, text: int = 0) -> torch.Tensor:
        return self.step([(text, tokens)], [0])[0]

    def in_pieces(self, tokens: torch.Tensor, sizes: Sequence[int], text: int = 0) -> torch.Tensor:
        begins = [sum(sizes[:index]) for index in range(len(sizes))]
        pieces = tokens.split([*sizes])
        return torch.cat([self.step([(text, piece)], [at])[0] for piece, at in zip(pieces, begins, strict=True)])

    def _attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        sliding_window: int | None = None,
        **others: Any,
    ) -> tuple[torch.Tensor, None]:
        """Row by row, so that no bits depend on others."""
        layer = module.layer_idx
        assert isinstance(layer, int)
        assert layer >= 0
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        group = query.shape[1] // key.shape[1]
        out = torch.zeros(query.shape[2], query.shape[1], value.shape[-1])
        for _, text, first, count in self._segments:
            kept = self._kept[text, layer]
            for row in range(first, first + count):
                kept.append(torch.cat((key[0, :, row], value[0, :, row]), dim=-1).float())
                pairs = torch.stack(kept[-(sliding_window or len(kept)) :]).repeat_interleave(group, dim=1)
                keys, values = pairs.split((key.shape[-1], value.shape[-1]), dim=-1)
                weights = ((keys * query[0, :, row].float()).sum(-1) * scale).softmax(0)
                out[row] = (weights[..., None] * values).sum(0)
        return out[None].to(query.dtype), None
