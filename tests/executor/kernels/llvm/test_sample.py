"""The compiled draw against the sampler in torch."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from qpdsl.executor.engine.step.sampler import NEAR_TIE_GAP, sample
from qpdsl.executor.kernels.llvm import sample as sample_kernels
from qpdsl.executor.kernels.llvm.compile import vector_width
from qpdsl.executor.kernels.llvm.sample import RowSampler
from qpdsl.executor.requests.request import SamplingParams

pytestmark = pytest.mark.skipif(not vector_width(), reason="this machine has no vectors")


@pytest.mark.parametrize("width", [4, 8, 16])
@pytest.mark.parametrize("vocabulary", [3, 64, 101, 5003])
def test_draws_are_those_of_the_sampler(vocabulary: int, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_kernels, "vector_width", lambda: width)
    draw = RowSampler(vocabulary)
    generator = torch.Generator().manual_seed(vocabulary)
    rows, rng = 60, random.Random(vocabulary)
    logits = torch.randn(rows, vocabulary, generator=generator) * torch.logspace(-1, 1.5, rows)[:, None]
    logits[::7, 1:] = float("-inf")
    logits[3, :2] = logits[3].max() + 1
    temperatures = [rng.choice([0.0, 0.3, 1.0, 2.5]) for _ in range(rows - 4)] + [0.0] * 4
    temperatures[3] = 0.0
    keys = [rng.getrandbits(64) for _ in range(rows)]
    positions = [rng.randrange(1 << 20) for _ in range(rows)]
    expected = sample(logits, [SamplingParams(temperature) for temperature in temperatures], keys, positions)
    arguments = torch.tensor(temperatures), torch.from_numpy(np.array(keys, dtype=np.uint64).view(np.int64))
    tokens, logprobs, gaps = draw(logits, *arguments, torch.tensor(positions))
    assert torch.equal(tokens, expected.tokens)
    assert torch.equal(gaps < NEAR_TIE_GAP, expected.near_ties)
    torch.testing.assert_close(logprobs, expected.logprobs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("vocabulary", [64, 65])
def test_logits_that_are_not_numbers_give_no_log_probability(vocabulary: int) -> None:
    logits = torch.zeros(3, vocabulary)
    logits[0, 5], logits[1] = float("nan"), float("-inf")
    zeros = torch.zeros(3, dtype=torch.int64)
    tokens, logprobs, _ = RowSampler(vocabulary)(logits, torch.ones(3), zeros, zeros)
    assert logprobs.isfinite().tolist() == [False, False, True]
    assert tokens.max() < vocabulary
