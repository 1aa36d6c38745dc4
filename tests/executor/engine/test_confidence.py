"""A sample ends before the first token that the model is not sure enough of, and can go on from there."""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise

import pytest
import torch
from transformers import PreTrainedModel

from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.executor.requests.drawing import Confidence, ConfidenceMeasure
from qpdsl.executor.requests.early_exit import EarlyExit
from qpdsl.executor.requests.request import GenerateRequest, Sample, SamplingParams
from tests.support.executor.models import VOCABULARY, engine_of, paged, random_model, served
from tests.support.executor.rule_mask import RuleMask, allowed

PROMPT = (5, 6, 7)
LENGTH = 40
MEASURES: tuple[ConfidenceMeasure, ...] = ("probability", "top", "margin", "entropy")
PARAMS = [SamplingParams(0.0), SamplingParams(1.3), SamplingParams(0.8, top_k=7, top_p=0.9)]


@cache
def model() -> PreTrainedModel:
    return random_model("llama")


def engine(**config: int) -> PagedEngine:
    return engine_of(paged("llama"), config=EngineConfig(**config))


def samples(own: PagedEngine, requests: list[GenerateRequest]) -> list[Sample]:
    return [drawn for (drawn,) in served(own, tuple(requests))]


def request(
    confidence: Confidence | None,
    params: SamplingParams,
    tokens: tuple[int, ...] = (),
    key: int = 9,
    masked: bool = False,
) -> GenerateRequest:
    def mask() -> RuleMask:
        return RuleMask(1000, tokens)

    left = LENGTH - len(tokens)
    return GenerateRequest(
        PROMPT + tokens, (key,), params, left, mask=mask if masked else None, drawn=len(tokens), confidence=confidence
    )


def measured(tokens: tuple[int, ...], by: ConfidenceMeasure, masked: bool) -> list[float]:
    """The confidence in each token after the prompt, as the model's own modules have it; 2 where it alone may come."""
    with torch.inference_mode():
        logits = model()(torch.tensor([PROMPT + tokens])).logits[0, len(PROMPT) - 1 :].double()
    found = []
    for at, token in enumerate(tokens):
        ids = allowed(list(tokens[:at])) if masked else list(range(VOCABULARY))
        probabilities = logits[at, ids].softmax(0)
        top = probabilities.sort(descending=True).values
        entropy = -(probabilities * probabilities.log()).sum().item()
        value = {
            "probability": probabilities[ids.index(token)].item(),
            "top": top[0].item(),
            "margin": (top[0] - top[1]).item() if len(ids) > 1 else 2.0,
            "entropy": 1 - entropy / math.log(max(len(ids), 2)),
        }
        found.append(2.0 if len(ids) == 1 else value[by])
    return found


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("by", MEASURES)
@pytest.mark.parametrize("params", PARAMS)
def test_it_ends_where_the_measure_says(by: ConfidenceMeasure, params: SamplingParams, masked: bool) -> None:
    own = engine()
    (whole,) = samples(own, [request(None, params, masked=masked)])
    confidences = measured(whole.tokens, by, masked)
    thresholds = sorted({value for value in confidences if value < 2})
    for threshold in [(a + b) / 2 for a, b in pairwise(thresholds)][:: 1 + len(thresholds) // 3]:
        stop = next(at for at, value in enumerate(confidences) if value <= threshold)
        (sample,) = samples(own, [request(Confidence(by, threshold), params, masked=masked)])
        assert (sample.finish, sample.tokens) == ("unsure", whole.tokens[:stop])
        assert sample.steps.draws == stop + 1
    (all_,) = samples(own, [request(Confidence(by, -1.0), params, masked=masked)])
    assert all_.tokens == whole.tokens and all_.finish == whole.finish


def pieces(own: PagedEngine, by: ConfidenceMeasure, params: SamplingParams, keys: list[int]) -> list[list[Sample]]:
    """Samples that go on wherever they were unsure, by one token that need not be sure."""
    wanted = Confidence(by, share=0.3)
    states = dict.fromkeys(keys, wanted)
    tokens: dict[int, tuple[int, ...]] = dict.fromkeys(keys, ())
    found: dict[int, list[Sample]] = {key: [] for key in keys}
    going = keys
    while going:
        drawn = samples(own, [request(states[key], params, tokens[key], key) for key in going])
        for key, piece in zip(going, drawn, strict=True):
            found[key].append(piece)
            tokens[key] += piece.tokens
            assert piece.confidence is not None
            states[key] = piece.confidence
        going = [key for key in going if len(tokens[key]) < LENGTH]
        free = [GenerateRequest(PROMPT + tokens[k], (k,), params, 1, drawn=len(tokens[k])) for k in going]
        for key, piece in zip(going, samples(own, free), strict=True):
            tokens[key] += piece.tokens
        going = [key for key in going if len(tokens[key]) < LENGTH]
    return [found[key] for key in keys]


@pytest.mark.parametrize("by", MEASURES)
def test_it_depends_on_nothing_but_its_own_row(by: ConfidenceMeasure) -> None:
    params, keys = SamplingParams(1.3), [1, 2, 3, 4, 5]
    alone = [pieces(engine(), by, params, [key])[0] for key in keys]
    together = pieces(engine(max_sequences=2, token_budget=7), by, params, keys)
    assert alone == together
    assert [[piece.confidence for piece in row] for row in alone] == [
        [piece.confidence for piece in row] for row in together
    ]
    assert all(sum(piece.finish == "unsure" for piece in row) > 4 for row in alone)


def test_a_sample_that_goes_on_computes_what_is_new_alone() -> None:
    computed: list[int] = []
    own = engine_of(paged("llama"), on_step=lambda step: computed.append(step.prefill_tokens + step.decode_tokens))
    pieces(own, "probability", SamplingParams(1.3), [1])
    # Each token is computed once, and the last one of a piece once more to draw after it without asking.
    unsure = sum(computed) - len(PROMPT) - LENGTH
    assert unsure <= LENGTH


def test_an_early_exit_is_no_distribution_to_be_sure_by() -> None:
    with pytest.raises(ValueError, match="not both"):
        GenerateRequest((1,), (0,), SamplingParams(), 1, exit=EarlyExit(0.5), confidence=Confidence())
