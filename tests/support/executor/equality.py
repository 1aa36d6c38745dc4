"""Whether a model behind paged attention gives the tokens of transformers' `generate`."""

from __future__ import annotations

import random
from copy import deepcopy
from itertools import takewhile

import torch
from transformers import PreTrainedModel

from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import EngineConfig
from qpdsl.executor.requests.errors import UnsupportedModel
from qpdsl.executor.requests.request import GenerateRequest, Sample, SamplingParams
from tests.support.executor.models import engine_of, served

_TOKENS = 8
# Below, at and beyond the windows of the tiny models, and beyond what the check at load reads.
_LENGTHS = (5, 33, 90)
_CONFIGS = (EngineConfig(), EngineConfig(max_sequences=3, token_budget=16))
# By how much rounding can move a logit, as a part of the largest.
_ROUNDING = 1e-3


def refusal(model: PreTrainedModel) -> str | None:
    """Why the model does not run on the paged engine; None where it does, and then all it decodes is `generate`'s.

    Greedy, alone and in a batch, whole prompts and pieces of them. AssertionError where a token or a probability is
    another.
    """
    reference = deepcopy(model)
    try:
        paged = PagedModel(model)
    except UnsupportedModel as error:
        return str(error)
    rng = random.Random(5)
    vocabulary = reference.config.get_text_config().vocab_size
    prompts = [tuple(rng.randrange(3, vocabulary) for _ in range(length)) for length in _LENGTHS]
    expected = [_generated(reference, prompt) for prompt in prompts]
    requests = tuple(GenerateRequest(prompt, (0,), SamplingParams(temperature=0), _TOKENS) for prompt in prompts)
    alone = [sample for request in requests for (sample,) in served(engine_of(paged), (request,))]
    _compare(reference, prompts, expected, alone)
    for config in _CONFIGS:
        _compare(
            reference, prompts, expected, [sample for (sample,) in served(engine_of(paged, config=config), requests)]
        )
    return None


@torch.inference_mode()
def _generated(model: PreTrainedModel, prompt: tuple[int, ...]) -> tuple[int, ...]:
    ids = torch.tensor([prompt])
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=_TOKENS, do_sample=False, pad_token_id=0
    )
    return tuple(output[0, len(prompt) :].tolist())


@torch.inference_mode()
def _compare(
    model: PreTrainedModel, prompts: list[tuple[int, ...]], expected: list[tuple[int, ...]], samples: list[Sample]
) -> None:
    """The tokens are those expected up to a tie that rounding decides; probabilities are those of one whole forward."""
    for prompt, wanted, sample in zip(prompts, expected, samples, strict=True):
        drawn = sample.tokens
        ids = torch.tensor([prompt + drawn[:-1]])
        logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 :].float()
        slack = _ROUNDING * max(1.0, logits.abs().max().item())
        best = logits.topk(2).values
        assert torch.all(best[:, 0] - logits.gather(1, torch.tensor(drawn)[:, None])[:, 0] <= slack), "no whole forward"
        same = len([*takewhile(lambda pair: pair[0] == pair[1], zip(wanted, drawn, strict=True))])
        assert same == len(drawn) or best[same, 0] - best[same, 1] <= slack, f"other tokens after {same}"
        logprobs = logits.log_softmax(-1).gather(1, torch.tensor(drawn)[:, None])
        assert abs(logprobs.sum().item() - sample.logprob) <= slack * len(drawn), "other probabilities"
