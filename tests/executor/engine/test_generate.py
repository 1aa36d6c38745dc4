"""The engine's greedy decoding is transformers' own, token for token, in float32."""

from __future__ import annotations

import random

import pytest
import torch

from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.executor.requests.drawing import Drafting
from qpdsl.executor.requests.request import GenerateRequest, ReadRequest, SamplingParams
from tests.support.executor.models import CONFIGS, VOCABULARY, paged, random_model

GREEDY = SamplingParams(temperature=0)


def prompts(lengths: list[int]) -> list[tuple[int, ...]]:
    rng = random.Random(7)
    return [tuple(rng.randrange(1, VOCABULARY) for _ in range(length)) for length in lengths]


@pytest.mark.parametrize("name", CONFIGS)
def test_greedy_equals_generate_while_batched_and_chunked(name: str) -> None:
    reference = random_model(name)
    engine = PagedEngine(EngineConfig(token_budget=32))
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


@pytest.mark.parametrize("draft", [None, Drafting("ngram", length=4, fixed=True)])
def test_samples_that_begin_with_the_likeliest_tokens_go_on_as_generate_does(draft: Drafting | None) -> None:
    reference, (prompt,) = random_model("llama"), prompts([12])
    with torch.inference_mode():
        first = reference(torch.tensor([prompt])).logits[0, -1].log_softmax(-1).topk(5)
    engine = PagedEngine(EngineConfig(token_budget=32))
    engine.add("m", paged("llama"))
    request = GenerateRequest(prompt, (0, 1, 2), GREEDY, 20, rank=2, draft=draft)
    ticket, other = engine.submit("m", request), engine.submit("m", GenerateRequest(prompt, (0,), GREEDY, 20))
    while engine.has_work:
        engine.step()
    for sample, token, logprob in zip(ticket.result().samples, first.indices[2:], first.values[2:], strict=True):
        begun = torch.tensor([[*prompt, int(token)]])
        whole = reference.generate(begun, max_new_tokens=19, do_sample=False, eos_token_id=None)
        assert sample.tokens == tuple(whole[0, len(prompt) :].tolist())
        assert sample.logprobs[0] == pytest.approx(logprob.item(), abs=1e-3)
    assert other.result().samples[0].tokens[0] == int(first.indices[0])


def test_eos_and_the_end_of_the_context_end_a_sample() -> None:
    engine = PagedEngine()
    engine.add("m", paged("llama"))
    (prompt,) = prompts([200])
    whole = engine.submit("m", GenerateRequest(prompt, (0,), GREEDY, 1000))
    while engine.has_work:
        engine.step()
    tokens = whole.result().samples[0].tokens
    assert len(prompt) + len(tokens) == 256 and whole.result().samples[0].finish == "length"

    ended = engine.submit("m", GenerateRequest(prompt, (0,), GREEDY, 1000, eos=frozenset({tokens[4]})))
    while engine.has_work:
        engine.step()
    sample = ended.result().samples[0]
    assert sample.finish == "eos"
    assert sample.tokens == tokens[: tokens.index(tokens[4]) + 1]


def test_logprob_is_the_sum_of_the_tokens_log_probabilities() -> None:
    engine = PagedEngine()
    engine.add("m", paged("qwen2"))
    (prompt,) = prompts([12])
    ticket = engine.submit("m", GenerateRequest(prompt, (99,), SamplingParams(0.7, top_k=20), 15))
    while engine.has_work:
        engine.step()
    sample = ticket.result().samples[0]
    with torch.inference_mode():
        logits = random_model("qwen2")(torch.tensor([prompt + sample.tokens])).logits[0]
    expected = logits.log_softmax(-1)[range(len(prompt) - 1, len(prompt) + 14), list(sample.tokens)].sum().item()
    assert sample.logprob == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_reads_are_the_models_logits_and_use_the_prefix_cache(name: str) -> None:
    engine = PagedEngine(EngineConfig(token_budget=24))
    engine.add("m", paged(name))
    (tokens,) = prompts([70])
    first = engine.submit("m", ReadRequest(tokens[:50], (9, 30, 49), (5, 17)))
    while engine.has_work:
        engine.step()
    second = engine.submit("m", ReadRequest(tokens, (60, 69), (5, 17)))
    while engine.has_work:
        engine.step()
        engine.check_integrity()
    assert second.result().cached == 50
    with torch.inference_mode():
        logits = random_model(name)(torch.tensor([tokens])).logits[0]
    for ticket, positions in ((first, [9, 30, 49]), (second, [60, 69])):
        expected = logits[positions][:, [5, 17]]
        assert torch.allclose(torch.tensor(ticket.result().logits), expected, atol=1e-4)
