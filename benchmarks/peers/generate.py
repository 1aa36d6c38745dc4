"""transformers' `generate`: one padded batch that runs to its longest row."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel, StoppingCriteria, StoppingCriteriaList

from benchmarks.peers.peer import OnStep, Room, Tokens, no_watch


def twin(model: PreTrainedModel) -> PreTrainedModel:
    """A second model over the same weight tensors, with modules and a configuration of its own.

    Switching the attention implementation changes a model and its configuration for good.
    """
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared)


class _Watch(StoppingCriteria):
    """Asked after each token whether the rows are done: they never are, but it tells that they are a token longer."""

    def __init__(self, on_step: OnStep, lengths: Sequence[int]) -> None:
        self._on_step = on_step
        self._lengths = lengths
        self._steps = 0

    def __call__(self, input_ids: torch.Tensor, scores: Any, **options: Any) -> torch.Tensor:
        self._steps += 1
        self._on_step(len(self._lengths), sum(min(self._steps, length) for length in self._lengths))
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


class Generate:
    """Static batches of at most `room.slots` rows, in the order in which the prompts come."""

    def __init__(self, model: PreTrainedModel, room: Room) -> None:
        self._model = model
        self._slots = room.slots
        self.steps = 0

    @torch.inference_mode()
    def run(self, prompts: Tokens, lengths: Sequence[int], on_step: OnStep = no_watch) -> Tokens:
        """Only the tokens asked for are returned; `steps` counts the decode steps of the last call."""
        self.steps = 0
        tokens: Tokens = []
        for start in range(0, len(prompts), self._slots):
            end = start + self._slots
            tokens += self._batch(prompts[start:end], lengths[start:end], on_step)
        return tokens

    def _batch(self, prompts: Tokens, lengths: Sequence[int], on_step: OnStep) -> Tokens:
        width, longest = max(map(len, prompts)), max(lengths)
        self.steps += longest
        ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        out = self._model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=longest,
            min_new_tokens=longest,
            stopping_criteria=StoppingCriteriaList([_Watch(on_step, lengths)]),
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        return [tuple(row[width : width + length].tolist()) for row, length in zip(out, lengths, strict=True)]

    @torch.inference_mode()
    def fan_out(self, prompt: Sequence[int], samples: int, length: int) -> Tokens:
        """As its documentation has it: `num_return_sequences`, which prefills the prompt once for each sample."""
        ids = torch.tensor([list(prompt)])
        return self._sampled(ids, length, num_return_sequences=samples)

    @torch.inference_mode()
    def fan_out_by_hand(self, prompt: Sequence[int], samples: int, length: int) -> Tokens:
        """As an expert would: prefill once, copy the cache for each sample."""
        ids = torch.tensor([list(prompt)])
        cache = DynamicCache(config=self._model.config)
        self._model(input_ids=ids[:, :-1], past_key_values=cache, logits_to_keep=1)
        cache.batch_repeat_interleave(samples)
        return self._sampled(ids.expand(samples, -1), length, past_key_values=cache)

    def _sampled(self, ids: torch.Tensor, length: int, **options: object) -> Tokens:
        out = self._model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=length,
            min_new_tokens=length,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            eos_token_id=None,
            pad_token_id=0,
            **options,
        )
        return [tuple(row[ids.shape[1] :].tolist()) for row in out]

    def close(self) -> None:
        """Nothing to give back."""
