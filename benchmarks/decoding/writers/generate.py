"""transformers' `generate` with a logits processor that asks llguidance for a mask before every token."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import llguidance.hf
import numpy as np
import torch
from llguidance import LLMatcher
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from transformers import AutoModelForCausalLM, AutoTokenizer, LogitsProcessor, LogitsProcessorList

from benchmarks.peers.peer import Room, Tokens, Written


class _Held(LogitsProcessor):
    """Masks each row's logits by its own matcher, which takes the row's new token first."""

    def __init__(self, matchers: Sequence[LLMatcher], width: int, eos: Sequence[int], told: Callable[[], None]) -> None:
        self._matchers = matchers
        self._bits = allocate_token_bitmask(len(matchers), width)
        self._eos = frozenset(eos)
        self._told = told
        self._steps = 0

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        if self._steps == 1:
            self._told()
        if self._steps:
            for matcher, token in zip(self._matchers, input_ids[:, -1].tolist(), strict=True):
                if not matcher.is_stopped() and token not in self._eos:
                    matcher.consume_token(token)
        self._steps += 1
        for row, matcher in enumerate(self._matchers):
            fill_next_token_bitmask(matcher, self._bits, row)
        # llguidance's own way for torch is compiled anew for one row and for several, its way for numpy is slow.
        allowed = np.unpackbits(self._bits.view(np.uint8), axis=1, count=scores.shape[1], bitorder="little")
        return scores.masked_fill_(torch.from_numpy(allowed) == 0, -torch.inf)


class Generate:
    """One padded batch that runs to its longest row."""

    def __init__(self, model: str, dtype: str, room: Room, eos: Sequence[int]) -> None:
        torch.set_num_threads(room.threads)
        self._model = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype)).eval()
        self._eos = list(eos)
        self._width = self._model.get_output_embeddings().weight.shape[0]
        self._tokens = llguidance.hf.from_tokenizer(
            AutoTokenizer.from_pretrained(model), n_vocab=self._width, eos_token=self._eos
        )
        self._compiled: dict[str, LLMatcher] = {}

    @torch.inference_mode()
    def write(
        self,
        prompts: Tokens,
        schemas: Sequence[str],
        limit: int,
        plan: Mapping[str, Any],
        on_first: Callable[[], None],
    ) -> Written:
        """It has one way, so `plan` says nothing."""
        width = max(map(len, prompts))
        matchers = [self._matcher(schema) for schema in schemas]
        out = self._model.generate(
            input_ids=torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts]),
            attention_mask=torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]),
            logits_processor=LogitsProcessorList([_Held(matchers, self._width, self._eos, on_first)]),
            max_new_tokens=limit,
            do_sample=False,
            eos_token_id=self._eos,
            pad_token_id=self._eos[0],
        )
        return Written([self._ended(row[width:].tolist()) for row in out])

    def _matcher(self, schema: str) -> LLMatcher:
        if schema not in self._compiled:
            self._compiled[schema] = LLMatcher(self._tokens, LLMatcher.grammar_from_json_schema(schema))
        return self._compiled[schema].deep_copy()

    def _ended(self, row: list[int]) -> tuple[int, ...]:
        """Without the padding behind the first end."""
        for index, token in enumerate(row):
            if token in self._eos:
                return tuple(row[: index + 1])
        return tuple(row)
