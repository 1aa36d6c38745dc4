"""Hidden states to drawn tokens in torch: the twin of the head of `triton/`.

It also serves where torch computes on a CPU. A draw's bits depend neither on the other draws nor on how many threads
sum: products have at least so many rows that BLAS sums each row alike, and sums of exponentials are taken in float64.
"""

from __future__ import annotations

import torch
from torch.nn.functional import linear, pad

from qpdsl.executor.kernels.data.token_draws import Drawn, HeadWeights, TokenDraws
from qpdsl.executor.kernels.plain.philox import GUMBEL_MAX, gumbel, philox4x32

# Enough rows for BLAS to sum a row alike for any larger number of them.
_MIN_ROWS = 16
# Ids whose logits are in memory at a time: all blocks but the last have the same shape. A multiple of 4, as ids share
# blocks of noise, and of 32, as they share words of a mask.
_IDS = 1 << 15


def dense(
    hidden: torch.Tensor,
    head: HeadWeights,
    draws: TokenDraws,
    bits: torch.Tensor | None = None,
    lines: torch.Tensor | None = None,
) -> Drawn:
    """As `dense` of `triton/head_kernels.py`."""
    vocabulary = head.weight.shape[0]
    wide = pad(hidden.float(), (0, 0, 0, max(0, _MIN_ROWS - len(hidden))))
    running = _Running(draws)
    for first in range(0, vocabulary, _IDS):
        last = min(first + _IDS, vocabulary)
        bias = None if head.bias is None else head.bias[first:last].float()
        products = linear(wide, head.weight[first:last].float(), bias)
        logits = _finished(products.index_select(0, draws.rows), head)
        if bits is not None and lines is not None:
            logits.masked_fill_(~allowed(bits, lines, first, last), float("-inf"))
        ids = torch.arange(first, last + -last % 4, device=hidden.device).expand(draws.size, -1)
        running.add(pad(logits, (0, -last % 4), value=float("-inf")), ids)
    return running.drawn()


class _Running:
    """The best of what was seen so far of each draw, and its sum of exponentials, in float64."""

    def __init__(self, draws: TokenDraws) -> None:
        self._draws = draws
        self._noisy = draws.temperatures > 0
        self._divisor = torch.where(self._noisy, draws.temperatures, 1.0)[:, None]
        lowest = torch.full_like(draws.temperatures, float("-inf"))
        self._best, self._second, self._logit = lowest.clone(), lowest.clone(), lowest.clone()
        self._token = torch.zeros_like(draws.keys)
        self._total = lowest.double()

    def add(self, logits: torch.Tensor, ids: torch.Tensor) -> None:
        """Logits float32 [D, n], −inf where no token may come, of ids int64 [D, n] above all seen before.

        Every 4 ids share a block of noise.
        """
        scores = logits / self._divisor
        if self._noisy.any():
            self._perturb(scores.view(len(scores), -1, 4), ids.view(len(scores), -1, 4))

        here, at = scores.max(dim=-1)
        others = scores.scatter(1, at[:, None], float("-inf")).amax(dim=-1)
        self._second = torch.maximum(torch.maximum(self._second, others), torch.minimum(self._best, here))
        better = here > self._best
        self._token = torch.where(better, ids.gather(1, at[:, None])[:, 0], self._token)
        self._logit = torch.where(better, logits.gather(1, at[:, None])[:, 0], self._logit)
        self._best = torch.maximum(self._best, here)
        self._total = torch.logaddexp(self._total, logits.double().logsumexp(dim=-1))

    def _perturb(self, scores: torch.Tensor, ids: torch.Tensor) -> None:
        """Adds noise to scores [D, n, 4] of ids [D, n, 4], in place."""
        # Where even the largest noise cannot lift a score to the runner-up, it is not needed.
        floor = (self._second - GUMBEL_MAX).clamp(min=torch.finfo(scores.dtype).min)
        floor = torch.where(self._noisy, floor, float("inf"))
        rows, places = (scores >= floor[:, None, None]).any(dim=-1).nonzero(as_tuple=True)
        own = ids[rows, places, 0] >> 2
        words = philox4x32(self._draws.keys[rows], own, self._draws.positions[rows] & 0xFFFFFFFF)
        scores[rows, places] = (scores[rows, places].double() + gumbel(words)).float()

    def drawn(self) -> Drawn:
        """What all ids together come to."""
        return self._token, (self._logit.double() - self._total).float(), self._best - self._second


def _finished(products: torch.Tensor, head: HeadWeights) -> torch.Tensor:
    logits = products if head.scale == 1.0 else products * head.scale
    return logits if head.softcap is None else torch.tanh(logits / head.softcap) * head.softcap


def allowed(bits: torch.Tensor, lines: torch.Tensor, first: int, last: int) -> torch.Tensor:
    """Which of the ids from `first`, a multiple of 32, to `last` each draw may take: bool [D, last − first]."""
    words = bits[:, first // 32 : -(-last // 32)].index_select(0, lines.clamp(min=0))
    shifts = torch.arange(32, dtype=torch.int32, device=bits.device)
    own = ((words[:, :, None] >> shifts) & 1).flatten(1)[:, : last - first].bool()
    return own | (lines < 0)[:, None]
