"""What is told of each draw is that of the model's own distribution, and asking for it changes no token."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch

from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.executor.requests.drawing import LIKELIEST, Drafting, DrawFigures
from qpdsl.executor.requests.request import GenerateRequest, Sample, SamplingParams
from tests.support.executor.models import VOCABULARY, engine_of, paged, random_model, served
from tests.support.executor.rule_mask import RuleMask, allowed

PROMPTS = [(5, 6, 7), (9, 2), (3, 3, 3, 8, 1)]
LENGTH = 24
PARAMS = [SamplingParams(0.0), SamplingParams(1.3), SamplingParams(0.8, top_k=7, top_p=0.9)]


def request(
    prompt: tuple[int, ...], params: SamplingParams, *, masked: bool, told: bool = True, **how: object
) -> GenerateRequest:
    mask = (lambda: RuleMask(1000)) if masked else None
    return GenerateRequest(prompt, (9, 4), params, LENGTH, mask=mask, figures=told, **how)  # type: ignore[arg-type]


def samples(engine: PagedEngine, requests: Sequence[GenerateRequest]) -> list[tuple[Sample, ...]]:
    return list(served(engine, tuple(requests)))


def expected(prompt: tuple[int, ...], tokens: tuple[int, ...], masked: bool) -> list[DrawFigures]:
    """As the model's own modules have them."""
    with torch.inference_mode():
        logits = random_model("llama")(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 :].double()
    found = []
    for at in range(len(tokens)):
        ids = allowed(list(tokens[:at])) if masked else list(range(VOCABULARY))
        logprobs = logits[at, ids].log_softmax(0)
        likeliest = logprobs.sort(descending=True).values[:LIKELIEST]
        entropy = -(logprobs.exp() * logprobs).sum().item()
        certainty = -logprobs.mean().item() - math.log(len(ids))
        found.append(DrawFigures(entropy, -likeliest.mean().item(), certainty))
    return found


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("params", PARAMS)
def test_they_are_those_of_what_the_model_could_have_drawn(params: SamplingParams, masked: bool) -> None:
    for prompt in PROMPTS:
        (drawn,) = samples(engine_of(paged("llama")), [request(prompt, params, masked=masked)])
        for sample in drawn:
            assert len(sample.figures) == len(sample.tokens)
            for own, wanted in zip(sample.figures, expected(prompt, sample.tokens, masked), strict=True):
                assert own == pytest.approx(wanted, abs=1e-3)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("params", PARAMS)
def test_they_hang_on_nothing_else_and_change_no_token(params: SamplingParams, masked: bool) -> None:
    alone = [samples(engine_of(paged("llama")), [request(prompt, params, masked=masked)])[0] for prompt in PROMPTS]
    plain = [request(prompt, params, masked=masked, told=False) for prompt in PROMPTS]
    untold = samples(engine_of(paged("llama")), plain)
    assert [[sample.tokens for sample in own] for own in untold] == [[sample.tokens for sample in own] for own in alone]
    assert all(sample.figures == () for own in untold for sample in own)
    ways: list[dict[str, object]] = [{}, {"cached": False}, {"draft": Drafting("ngram", length=4, fixed=True)}]
    ways += [{"jump": True}, {"sparse": True}] if masked else []
    for how in ways:
        requests = [request(prompt, params, masked=masked, **how) for prompt in PROMPTS]
        for pages, config in ((200, EngineConfig()), (9, EngineConfig(token_budget=9, max_sequences=3))):
            together = samples(engine_of(paged("llama"), pages, config=config), [*requests, *plain])[: len(requests)]
            assert [[sample.tokens for sample in own] for own in together] == [[s.tokens for s in own] for own in alone]
            assert [[sample.figures for sample in own] for own in together] == [
                [s.figures for s in own] for own in alone
            ]
