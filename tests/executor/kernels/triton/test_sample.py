"""The sampling kernel draws the tokens that the sampler draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

import triton
import triton.language as tl

from qpdsl.executor.engine.batch.staging import Parcel, Staging
from qpdsl.executor.engine.step import sampler
from qpdsl.executor.engine.step.sampler import DeviceSampler
from qpdsl.executor.kernels.data.token_draws import HeadWeights, TokenDraws
from qpdsl.executor.kernels.plain.philox import gumbel, philox4x32
from qpdsl.executor.kernels.triton import head_kernels, vocabulary_parts
from qpdsl.executor.kernels.triton import sample as sample_module
from qpdsl.executor.kernels.triton.sample import sample
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


@triton.jit
def noise_kernel(words, quick_out, exact_out, N: tl.constexpr):
    at = tl.arange(0, N)
    word = tl.load(words + at).to(tl.uint32)
    tl.store(quick_out + at, vocabulary_parts.quick_noise(word))
    tl.store(exact_out + at, vocabulary_parts.exact_noise(word))


def test_quick_noise_errs_by_less_than_is_allowed_for() -> None:
    """At both ends of the words, around the place where the formula changes, and anywhere."""
    ends = torch.arange(512)
    words = torch.cat([ends, 2**32 - 1 - ends, 2**29 - 256 + ends, torch.randint(0, 2**32, (2560,))]).to(DEVICE)
    quick, exact = torch.empty(4096, device=DEVICE), torch.empty(4096, dtype=torch.float64, device=DEVICE)
    noise_kernel[(1,)](words, quick, exact, N=4096)
    assert (exact - gumbel(words)).abs().max() < 1e-12
    # A GPU's own logarithms err more than the interpreter's: `benchmarks.gpu.run` draws with them.
    assert (quick - exact).abs().max() < vocabulary_parts._NOISE_ERROR.value / 4


def counted(monkeypatch: pytest.MonkeyPatch, module: object) -> list[int]:
    """How many ids got their noise in float64 at each call from a module."""
    calls: list[int] = []
    noise = vocabulary_parts.exact_noise

    def exact_noise(words: tl.tensor) -> object:
        calls.append(words.numel)
        return noise(words)

    monkeypatch.setattr(module, "exact_noise", exact_noise)
    return calls


@pytest.mark.skipif(DEVICE.type == "cuda", reason="kernels are not compiled from patched functions")
def test_float64_is_for_ids_that_can_still_win(monkeypatch: pytest.MonkeyPatch) -> None:
    in_parts, in_choice = counted(monkeypatch, sample_module), counted(monkeypatch, vocabulary_parts)
    logits = torch.randn(1, 9000, generator=torch.Generator().manual_seed(2))
    draws = draws_of([1.0] * 4, [0] * 4)
    tokens, _, _ = sample(logits, draws)
    assert not in_parts and 4 <= len(in_choice) <= 8
    assert (
        tokens.tolist()
        == sampler.sample(logits.repeat(4, 1), [SamplingParams(1.0)] * 4, KEYS, POSITIONS).tokens.tolist()
    )


@pytest.mark.skipif(DEVICE.type == "cuda", reason="kernels are not compiled from patched functions")
def test_float32_decides_nothing_where_more_than_two_are_near(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five ids whose perturbed scores differ by millionths, and noise in float32 that errs by more than that."""
    quick = vocabulary_parts.quick_noise

    def erring(words: tl.tensor) -> tl.tensor:
        return quick(words) + (words & 4).to(tl.float32) * 8e-6 - 1.6e-5

    for module in (sample_module, head_kernels):
        monkeypatch.setattr(module, "quick_noise", erring)
    near = torch.tensor([500, 501, 506, 510, 511])
    logits = torch.full((5, 1200), -30.0)
    for row, (key, position) in enumerate(zip(signed(KEYS), POSITIONS, strict=True)):
        words = philox4x32(key.expand(5), near // 4, torch.full((5,), position)).gather(1, near[:, None] % 4)
        order = torch.tensor([(row + index * 2) % 5 for index in range(5)])
        logits[row, near] = (1.0 - gumbel(words)[:, 0] + order * 2e-6).float()
    wanted = sampler.sample(logits, [SamplingParams(1.0)] * 5, KEYS, POSITIONS)
    assert len(set(wanted.tokens.tolist())) > 2
    draws = draws_of([1.0] * 5)
    head = HeadWeights(logits.T.contiguous())
    for drawn in (sample(logits, draws), head_kernels.dense(torch.eye(5), head, draws)):
        assert torch.equal(drawn[0], wanted.tokens)
        assert (drawn[2] < 1e-5).all()


@pytest.mark.parametrize(("draws", "parts"), [(1, 1), (7, 5), (64, 31)])
def test_no_number_of_draws_takes_a_kernel_of_its_own(draws: int, parts: int) -> None:
    """Triton compiles a kernel once more for a pointer that is no multiple of 16 bytes."""
    for tensor in vocabulary_parts.Parts.empty(draws, parts, DEVICE):
        assert tensor.shape == (draws, parts) and tensor.is_contiguous()
        assert tensor.data_ptr() % 16 == 0


def test_masks_and_filters_are_read_where_the_logits_are() -> None:
    """Several draws of a row under masks of their own, filtered and not."""
    rng = np.random.default_rng(4)
    logits = torch.from_numpy(rng.normal(size=(3, 1003)).astype(np.float32) * 3).to(DEVICE)
    allowed = rng.random((2, 32 * 32)) < [[0.3], [0.01]]
    rows, lines = [0, 1, 1, 2, 0, 2, 1], [0, -1, 1, 1, -1, 0, 0]
    params = [
        SamplingParams(1.0, top_p=0.8),
        SamplingParams(1.0, top_k=20),
        SamplingParams(0.0, top_k=5),
        SamplingParams(0.7),
        SamplingParams(1.5, min_p=0.2),
        SamplingParams(1.2, 12, 0.9, 0.05),
        SamplingParams(1.0, top_p=1.0),
    ]
    keys, positions = [3**index for index in range(7)], list(range(7))
    masked = logits[rows].clone()
    for row, line in enumerate(lines):
        if line >= 0:
            masked[row, ~torch.from_numpy(allowed[line, :1003])] = -torch.inf
    bits = torch.from_numpy(np.packbits(allowed, axis=1, bitorder="little").view(np.int32)).to(DEVICE)
    parcel = Parcel(Staging(str(DEVICE)))
    made = DeviceSampler(Staging(str(DEVICE)), sample).planned(params, keys, positions, rows, 1003, parcel)
    parcel.send()
    drawn = made(logits, (bits, torch.tensor(lines, dtype=torch.int32, device=DEVICE)))
    wanted = sampler.sample(masked, params, keys, positions)
    assert torch.equal(drawn.tokens, wanted.tokens) and torch.equal(drawn.near_ties, wanted.near_ties)
    torch.testing.assert_close(drawn.logprobs, wanted.logprobs, rtol=0, atol=1e-5)
    again = DeviceSampler(Staging(str(DEVICE)), sample)(masked, params, keys, positions)
    assert torch.equal(again.tokens, wanted.tokens)
