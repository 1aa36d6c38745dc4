"""Counter-based Gumbel noise: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).

The noise of one token is a pure function of (key, position, token id). Four neighbouring ids share one Philox block:
counter = (id >> 2, position, 0, 0), and the id takes word id & 3.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

_Words = np.ndarray[Any, np.dtype[Any]]

_MASK = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
# Blocks at a time on a CPU, so that what a round reads and writes stays in a core's own cache.
_CHUNK = 8192

# u is (x + 1/2) / 2**32 of a 32-bit x, so every Gumbel variate lies between these.
GUMBEL_MIN = -3.14
GUMBEL_MAX = 22.88


def philox4x32(keys: torch.Tensor, c0: torch.Tensor, c1: torch.Tensor) -> torch.Tensor:
    """Philox4x32-10 blocks with counter (c0, c1, 0, 0).

    Args: int64 tensors of one shape [n]; `keys` are 64-bit keys (low word first), c0 and c1 in [0, 2**32).
    Returns int64 [n, 4], every entry in [0, 2**32). Products wrap modulo 2**64 in int64, which keeps both halves right.
    """
    if not keys.is_cuda:
        return torch.from_numpy(_on_cpu(keys.numpy(), c0.numpy(), c1.numpy()))
    k0, k1 = keys & _MASK, (keys >> 32) & _MASK
    c2, c3 = torch.zeros_like(c0), torch.zeros_like(c0)
    for _ in range(ROUNDS):
        p0, p1 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((p1 >> 32) & _MASK) ^ c1 ^ k0,
            p1 & _MASK,
            ((p0 >> 32) & _MASK) ^ c3 ^ k1,
            p0 & _MASK,
        )
        k0, k1 = (k0 + WEYL[0]) & _MASK, (k1 + WEYL[1]) & _MASK
    return torch.stack((c0, c1, c2, c3), dim=-1)


def _on_cpu(keys: _Words, c0: _Words, c1: _Words) -> _Words:
    """`philox4x32` in numpy, in place: it takes a third of the time of torch's operators."""
    out = np.empty((len(keys), 4), dtype=np.uint64)
    mask, half = np.uint64(_MASK), np.uint64(32)
    multipliers, weyl = [np.uint64(m) for m in MULTIPLIERS], [np.uint64(w) for w in WEYL]
    for start in range(0, len(keys), _CHUNK):
        part = slice(start, start + _CHUNK)
        k0, k1 = keys[part].view(np.uint64) & mask, keys[part].view(np.uint64) >> half
        x0, x1 = c0[part].astype(np.uint64), c1[part].astype(np.uint64)
        x2, x3, p0, p1 = (np.zeros_like(x0) for _ in range(4))
        for _ in range(ROUNDS):
            np.multiply(x0, multipliers[0], out=p0)
            np.multiply(x2, multipliers[1], out=p1)
            np.right_shift(p1, half, out=x0)
            x0 ^= x1
            x0 ^= k0
            np.right_shift(p0, half, out=x2)
            x2 ^= x3
            x2 ^= k1
            np.bitwise_and(p1, mask, out=x1)
            np.bitwise_and(p0, mask, out=x3)
            k0 += weyl[0]
            k0 &= mask
            k1 += weyl[1]
            k1 &= mask
        for word, values in enumerate((x0, x1, x2, x3)):
            out[part, word] = values
    return out.view(np.int64)


def gumbel(words: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel variates from 32-bit words, float64, the same shape: g = −log(−log1p(−u)), u = (x + ½)·2⁻³²."""
    u = words.double().add_(0.5).mul_(2.0**-32)
    return u.neg_().log1p_().neg_().log_().neg_()
