"""The engine's greedy decoding is transformers' own, token for token, in float32."""

from __future__ import annotations

import random

import pytest
import torch

from qpdsl.executor.engine.engine import Engine, EngineConfig
from qpdsl.executor.engine.request import GenerateRequest, SamplingParams
from tests.engine.models import CONFIGS, VOCABULARY, paged, random_model

GREEDY = SamplingParams(temperature=0)


def prompts(lengths: list[int]) -> list[tuple[int, ...]]:
    rng = random.Random(7)
    return [tuple(rng.randrange(1, VOCABULARY) for _ in range(length)) for length in lengths]


@pytest.mark.parametrize("name", CONFIGS)
def test_greedy_equals_generate(name: str) -> None:
    reference = random_model(name)
    engine = Engine(EngineConfig(token_budget=32))
    engine.add("m", paged(name))
    requests = [
        GenerateRequest(prompt, (0,), GREEDY, max_tokens)
        for prompt, max_tokens in zip(prompts([1, 3, 16, 17, 50, 90]), [40, 7, 33, 20, 40, 12], strict=True)
    ]
    tickets = [engine.submit("m", request) for request in requests]
    while engine.has_work:
        engine.step()
        engine.check_integrity()
    for request, ticket in zip(requests, tickets, strict=True):
        expected = reference.generate(
            torch.tensor([request.prompt]), max_new_tokens=request.max_tokens, do_sample=False, eos_token_id=None
        )
        assert ticket.result().samples[0].tokens == tuple(expected[0, len(request.prompt) :].tolist())
