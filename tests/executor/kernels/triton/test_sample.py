"""The sampling kernel draws the tokens that the sampler draws."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

import triton
import triton.language as tl

from qpdsl.executor.engine.step import sampler
from qpdsl.executor.kernels.data.token_draws import TokenDraws
from qpdsl.executor.kernels.plain.philox import philox4x32
from qpdsl.executor.kernels.triton.heads.sample import sample
from qpdsl.executor.requests.request import SamplingParams
from tests.support.executor.paged_case import DEVICE

KEYS = [1, 2**64 - 5, 123456789012345, 7, 2**63]
POSITIONS = [0, 1, 5, 1000, 2**20]


def signed(keys: list[int]) -> torch.Tensor:
    return torch.tensor([key - (1 << 64) if key >> 63 else key for key in keys], device=DEVICE)


def draws_of(temperatures: list[float], rows: list[int] | None = None) -> TokenDraws:
    """A draw at each temperature, under the keys and positions above."""
    count = len(temperatures)
    return TokenDraws(
        torch.tensor(rows or range(count), dtype=torch.int32, device=DEVICE),
        torch.tensor(temperatures, device=DEVICE),
        signed(KEYS[:count]),
        torch.tensor(POSITIONS[:count], device=DEVICE),
    )


@triton.jit
def words_kernel(keys, c0, c1, out, N: tl.constexpr):
    at = tl.arange(0, N)
    zero = tl.zeros([N], tl.uint32)
    first, second = tl.load(c0 + at).to(tl.uint32), tl.load(c1 + at).to(tl.uint32)
    w0, w1, w2, w3 = tl.philox(tl.load(keys), first, second, zero, zero)
    tl.store(out + at * 4, w0.to(tl.int64))
    tl.store(out + at * 4 + 1, w1.to(tl.int64))
    tl.store(out + at * 4 + 2, w2.to(tl.int64))
    tl.store(out + at * 4 + 3, w3.to(tl.int64))


@pytest.mark.parametrize("key", KEYS)
def test_words_are_those_of_the_torch_path(key: int) -> None:
    c0 = torch.tensor([0, 1, 2, 37_000, 2**31, 2**32 - 1, 5, 5], device=DEVICE)
    c1 = torch.tensor([0, 0, 9, 2**20, 2**31, 2**32 - 1, 1, 2], device=DEVICE)
    out = torch.empty(8, 4, dtype=torch.int64, device=DEVICE)
    words_kernel[(1,)](signed([key]), c0, c1, out, N=8)
    assert torch.equal(out, philox4x32(signed([key]).expand(8), c0, c1))


@pytest.mark.parametrize(
    ("vocabulary", "spread", "temperatures"),
    [
        (9001, 3.0, [0.0, 1.0, 0.8, 0.3, 1.7]),
        (1003, 0.0, [1.0, 1.0, 1.0, 0.0, 5.0]),
        (16_500, 1.0, [1.0, 0.7, 0.0, 1.0, 1.3]),
        (3, 1.0, [1.0, 0.7, 0.0, 1.0, 1.3]),
    ],
)
def test_draws_are_the_samplers(vocabulary: int, spread: float, temperatures: list[float]) -> None:
    generator = torch.Generator().manual_seed(vocabulary)
    logits = (torch.randn(5, vocabulary, generator=generator) * spread).to(DEVICE)
    # As under a constraint: most ids are impossible, in one row all but one.
    logits[1, 1::2] = float("-inf")
    logits[4] = float("-inf")
    logits[4, vocabulary // 2] = -3.0
    tokens, logprobs, gaps = sample(logits, draws_of(temperatures))
    drawn = sampler.sample(logits, [SamplingParams(t) for t in temperatures], KEYS, POSITIONS)
    assert torch.equal(tokens, drawn.tokens)
    torch.testing.assert_close(logprobs, drawn.logprobs, rtol=0, atol=1e-5)
    assert torch.equal(gaps < sampler.NEAR_TIE_GAP, drawn.near_ties)
    assert gaps[4].isinf()


def test_equal_logits_go_to_the_first_and_are_a_tie() -> None:
    logits = torch.zeros(1, 9000, device=DEVICE)
    logits[0, [700, 8999, 2000]] = 4.0
    tokens, _, gaps = sample(logits, draws_of([0.0]))
    assert (tokens.item(), gaps.item()) == (700, 0.0)
