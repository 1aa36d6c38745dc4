"""Whether a model behind paged attention gives the tokens of transformers' `generate`."""

from __future__ import annotations

import random
from copy import deepcopy
from itertools import takewhile

import torch
from transformers import PreTrainedModel

from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import EngineConfig
from qpdsl.executor.models.language_part import language_part
from qpdsl.executor.requests.errors import UnsupportedModel
from qpdsl.executor.requests.request import GenerateRequest, Sample, SamplingParams
from tests.support.executor.models import engine_of, served

_TOKENS = 6
# Below, at and beyond the windows of the tiny models, and beyond what the check at load reads.
_LENGTHS = (5, 33, 90)
_PIECES = EngineConfig(token_budget=16)
_PAGES = 40
# By how much rounding can move a logit, as a part of the largest.
_ROUNDING = 1e-3


def refusal(model: PreTrainedModel) -> str | None:
    """Why the model does not run on the paged engine; None where it does, and then it decodes as `generate` does.

    Greedily: a prompt alone and whole, and several in pieces beside each other. Raises AssertionError where a token or
    a probability is another.
    """
    reference = deepcopy(model)
    try:
        paged = PagedModel(language_part(model))
    except UnsupportedModel as error:
        return str(error)
    rng = random.Random(5)
    vocabulary = reference.config.get_text_config().vocab_size
    prompts = [tuple(rng.randrange(3, vocabulary) for _ in range(length)) for length in _LENGTHS]
    requests = tuple(GenerateRequest(prompt, (0,), SamplingParams(temperature=0), _TOKENS) for prompt in prompts)
    alone = served(engine_of(paged, _PAGES), requests[-1:])
    together = served(engine_of(paged, _PAGES, _PIECES), requests)
    for prompt, samples in zip(prompts, together, strict=True):
        expected = _generated(reference, prompt)
        for (sample,) in (samples, *(alone if prompt is prompts[-1] else ())):
            _compare(reference, prompt, expected, sample)
    return None


@torch.inference_mode()
def _generated(model: PreTrainedModel, prompt: tuple[int, ...]) -> tuple[int, ...]:
    ids = torch.tensor([prompt])
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=_TOKENS, do_sample=False, pad_token_id=0
    )
    return tuple(output[0, len(prompt) :].tolist())


@torch.inference_mode()
def _compare(model: PreTrainedModel, prompt: tuple[int, ...], expected: tuple[int, ...], sample: Sample) -> None:
    """The expected tokens, up to a tie that rounding decides, with the probabilities of a whole forward."""
    drawn = sample.tokens
    chosen = torch.tensor(drawn)[:, None]
    logits = model(input_ids=torch.tensor([prompt + drawn[:-1]]), use_cache=False).logits[0, len(prompt) - 1 :].float()
    slack = _ROUNDING * max(1.0, logits.abs().max().item())
    best = logits.topk(2).values
    assert (best[:, :1] - logits.gather(1, chosen)).max() <= slack, "a token is not the best of a whole forward"
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(expected, drawn, strict=True)))
    assert same == len(drawn) or best[same, 0] - best[same, 1] <= slack, f"{expected} is generated, not {drawn}"
    logprob = logits.log_softmax(-1).gather(1, chosen).sum().item()
    assert abs(logprob - sample.logprob) <= slack * len(drawn), f"a log-probability of {sample.logprob}, not {logprob}"
