"""The noise generator against the published test vector, a reference in whole numbers, and the Gumbel distribution."""

from __future__ import annotations

import random

import torch

from qpdsl.executor.kernels.plain.philox import GUMBEL_MAX, GUMBEL_MIN, gumbel, philox4x32


def reference(key: int, c0: int, c1: int) -> list[int]:
    counter, k = [c0, c1, 0, 0], [key & 0xFFFFFFFF, key >> 32]
    for _ in range(10):
        p0, p1 = counter[0] * 0xD2511F53, counter[2] * 0xCD9E8D57
        counter = [
            (p1 >> 32) ^ counter[1] ^ k[0],
            p1 & 0xFFFFFFFF,
            (p0 >> 32) ^ counter[3] ^ k[1],
            p0 & 0xFFFFFFFF,
        ]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return counter


def test_the_published_vector() -> None:
    zero = torch.zeros(1, dtype=torch.long)
    assert philox4x32(zero, zero, zero)[0].tolist() == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def test_equals_the_reference_over_the_whole_range() -> None:
    rng = random.Random(1)
    cases = [(rng.getrandbits(64), rng.getrandbits(32), rng.getrandbits(32)) for _ in range(200)]
    cases += [((1 << 64) - 1, (1 << 32) - 1, (1 << 32) - 1), (1 << 63, 0, 1)]
    keys = torch.tensor([key - (1 << 64) if key >> 63 else key for key, _, _ in cases])
    words = philox4x32(keys, torch.tensor([c for _, c, _ in cases]), torch.tensor([c for _, _, c in cases]))
    assert words.tolist() == [reference(*case) for case in cases]


def test_every_variate_is_finite_and_within_the_bounds() -> None:
    extremes = gumbel(torch.tensor([0, 1, (1 << 32) - 2, (1 << 32) - 1]))
    assert torch.isfinite(extremes).all()
    assert extremes.min() >= GUMBEL_MIN and extremes.max() <= GUMBEL_MAX
    assert extremes.max() - GUMBEL_MAX > -0.02 and extremes.min() - GUMBEL_MIN < 0.02


def test_variates_follow_the_gumbel_distribution() -> None:
    count = 50_000
    key = torch.full((count // 4,), 12345)
    noise = gumbel(philox4x32(key, torch.arange(count // 4), torch.zeros_like(key))).flatten().sort().values
    expected = torch.exp(-torch.exp(-noise))
    observed = (torch.arange(count) + 0.5) / count
    # Kolmogorov–Smirnov at a significance of one in a thousand.
    assert (expected - observed).abs().max() < 1.95 / count**0.5
