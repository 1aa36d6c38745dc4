"""The head by kernels or their twins: the sampler's tokens, whatever else is in the batch."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from qpdsl.executor.engine.batch.staging import Staging
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import EngineConfig
from qpdsl.executor.engine.step import sampler
from qpdsl.executor.engine.step.device_head import DeviceHead
from qpdsl.executor.engine.step.draws import Draw, Masks
from qpdsl.executor.engine.step.token_head import HeadDraws
from qpdsl.executor.kernels import linear, paged_attention
from qpdsl.executor.kernels.data.token_draws import HeadWeights
from qpdsl.executor.requests.early_exit import EarlyExit
from qpdsl.executor.requests.request import GenerateRequest, Sample, SamplingParams
from tests.support.executor.models import VOCABULARY, engine_of, random_model, served
from tests.support.executor.rule_mask import RuleMask

SAMPLING = [SamplingParams(0.8), SamplingParams(0.0), SamplingParams(1.3, top_k=9), SamplingParams(1.0)]


@pytest.fixture(autouse=True)
def _twins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_attention, "_INTERPRETED", False)


@pytest.mark.parametrize("interpreted", [False, True], ids=["twins", "kernels"])
def test_a_mixed_batch(interpreted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under masks of few ids, of many, of one that two share, and under none."""
    if interpreted:
        pytest.importorskip("triton")
        monkeypatch.setattr(paged_attention, "_INTERPRETED", True)
    generator = torch.Generator().manual_seed(1)
    weights = HeadWeights(torch.randn(200, 24, generator=generator), softcap=20.0)
    hidden = torch.randn(3, 24, generator=generator)
    ids = [[5, 90, 199], list(range(0, 200, 2)), [7]]
    bits = np.zeros((3, 7 * 32), dtype=np.bool_)
    for row, own in zip(bits, ids, strict=True):
        row[own] = True
    masks = Masks(np.packbits(bits, axis=1, bitorder="little").view(np.int32), bits.sum(axis=1), {})
    cases = [(0, 0), (1, -1), (2, 1), (1, 2), (1, 2), (0, 0)]
    draws = [
        Draw(
            row,
            (SamplingParams(1.0), SamplingParams(0.0))[index % 2],
            17 * index + (1 << 63),
            3 * index,
            allowed,
        )
        for index, (row, allowed) in enumerate(cases)
    ]
    head = DeviceHead(weights, Staging("cpu"), deterministic=True)
    drawn = head(hidden, HeadDraws.of(draws, masks))
    logits = torch.tanh(hidden @ weights.weight.T / 20) * 20
    logits = logits[[draw.row for draw in draws]]
    for row, draw in enumerate(draws):
        if draw.allowed >= 0:
            logits[row, ~torch.from_numpy(bits[draw.allowed, :200])] = float("-inf")
    wanted = sampler.sample(
        logits, [draw.params for draw in draws], [draw.key for draw in draws], [draw.position for draw in draws]
    )
    assert torch.equal(drawn.tokens, wanted.tokens) and torch.equal(drawn.near_ties, wanted.near_ties)
    torch.testing.assert_close(drawn.logprobs, wanted.logprobs, rtol=0, atol=1e-5)
    for row, draw in enumerate(draws):
        alone = head(hidden, HeadDraws.of([draw], masks))
        assert (alone.tokens[0], alone.logprobs[0]) == (drawn.tokens[row], drawn.logprobs[row])


@cache
def requests(sparse: bool) -> tuple[GenerateRequest, ...]:
    """Masked and not, filtered and not, early exits and a fan-out."""
    rng = random.Random(3)
    made = []
    for index in range(8):
        prompt = tuple(rng.randrange(1, VOCABULARY) for _ in range(3 + 7 * index))
        request = GenerateRequest(prompt, tuple(range(index, index + 1 + index % 3)), SAMPLING[index % 4], 12)
        if index != 3:
            request = replace(request, mask=RuleMask, sparse=sparse)
        made.append(replace(request, exit=EarlyExit(0.3)) if index == 5 else request)
    return tuple(made)


def tokens(results: list[tuple[Sample, ...]]) -> list[list[tuple[int, ...]]]:
    return [[sample.tokens for sample in samples] for samples in results]


@pytest.mark.parametrize("kernels", [False, True], ids=["modules", "twins"])
def test_the_engine_draws_the_same(kernels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = tokens(served(engine_of(PagedModel(random_model("gemma2"), kernels=False)), requests(False)))
    if not kernels:
        # As on a processor for which nothing is compiled.
        monkeypatch.setattr(linear, "_compiled", lambda *_: None)
    made = PagedModel(random_model("gemma2"), native=False, kernels=kernels)
    assert tokens(served(engine_of(made), requests(True))) == wanted


def test_steps_of_a_fixed_size_give_the_same_bits_in_any_batch() -> None:
    model = PagedModel(random_model("llama"), kernels=True)
    config = EngineConfig(deterministic=True)
    together = served(engine_of(model, config=config), requests(True)[:4])
    alone = [served(engine_of(model, config=config), (request,))[0] for request in requests(True)[:4]]
    assert together == alone
