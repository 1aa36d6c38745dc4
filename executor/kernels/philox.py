"""Counter-based Gumbel noise: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).

The noise of one token is a pure function of (key, position, token id). Four neighbouring ids share one Philox block:
counter = (id >> 2, position, 0, 0), and the id takes word id & 3.
"""

from __future__ import annotations

import torch

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10

# u runs over (x + 1/2) / 2**32 for 32-bit x, so a Gumbel variate lies between these, whatever the key.
GUMBEL_MIN = -3.14
GUMBEL_MAX = 22.88


def philox4x32(keys: torch.Tensor, c0: torch.Tensor, c1: torch.Tensor) -> torch.Tensor:
    """Philox4x32-10 blocks with counter (c0, c1, 0, 0).

    Args: int64 tensors of one shape [n]; `keys` are 64-bit keys (low word first), c0 and c1 in [0, 2**32).
    Returns int64 [n, 4], every entry in [0, 2**32). Products wrap modulo 2**64 in int64: both halves come out right.
    """
    k0, k1 = keys & _MASK, (keys >> 32) & _MASK
    c2, c3 = torch.zeros_like(c0), torch.zeros_like(c0)
    for _ in range(_ROUNDS):
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((p1 >> 32) & _MASK) ^ c1 ^ k0,
            p1 & _MASK,
            ((p0 >> 32) & _MASK) ^ c3 ^ k1,
            p0 & _MASK,
        )
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return torch.stack((c0, c1, c2, c3), dim=-1)


def gumbel(words: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel variates from 32-bit words, float64, the same shape: g = −log(−log1p(−u)), u = (x + ½)·2⁻³²."""
    u = (words.double() + 0.5) * 2.0**-32
    return -torch.log(-torch.log1p(-u))
