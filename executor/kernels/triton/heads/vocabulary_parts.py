"""Draws over a vocabulary in parts: noise for a tile of ids, what a part comes to, and the parts merged in their order.

A part is summed up by its best and second best perturbed scores, the id and the logit of the best, and the largest
logit with the sum of exponentials relative to it. So the log-probability of a token is known without all logits at once
(online softmax: Milakov and Gimelshein, 2018), and Gumbel-max needs none of them twice.

The noise has the random words of `plain/philox.py`, so a draw's token is the one that torch draws. The logarithms are
taken in float64 as there. Those of two libraries may differ in the last bit: after rounding to float32 this changes a
perturbed score in about one of ten million cases, and a token only where such a case meets a near tie.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from qpdsl.executor.kernels.data.token_draws import Drawn

# Parts that are merged at a time. Fixed, so that the bits of a sum do not depend on how many parts others have.
_AT_ONCE = 512


class Parts(NamedTuple):
    """What parts of a vocabulary come to: float32 [B, parts], of `token` int32."""

    best: torch.Tensor
    second: torch.Tensor
    token: torch.Tensor
    logit: torch.Tensor
    peak: torch.Tensor
    under: torch.Tensor

    @classmethod
    def empty(cls, rows: int, parts: int, device: torch.device) -> Parts:
        """Room for the parts of so many draws."""
        best, second, logit, peak, under = torch.empty((5, rows, parts), device=device).unbind()
        return cls(best, second, torch.empty((rows, parts), dtype=torch.int32, device=device), logit, peak, under)


@triton.jit
def gumbel_of(words):
    """Standard Gumbel variates float64 from words uint32: −log(−log(1 − u)), u = (x + ½)·2⁻³²; 1 − u is exact."""
    u = (words.to(tl.float64) + 0.5) * 2.3283064365386963e-10
    return -tl.log(-tl.log(1.0 - u))


@triton.jit
def neighbours_noise(key, position, first, M: tl.constexpr, N: tl.constexpr):
    """Noise float64 [M, N] of N neighbouring ids from `first` on, a multiple of 4; `key` and `position` [M]."""
    zero = tl.zeros([M, N // 4], tl.uint32)
    block = zero + (first // 4 + tl.arange(0, N // 4)).to(tl.uint32)[None, :]
    w0, w1, w2, w3 = tl.philox(key[:, None], block, zero + position[:, None], zero, zero)
    return gumbel_of(tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3)))


@triton.jit
def listed_noise(key, position, ids, N: tl.constexpr):
    """Noise float64 [N] of any ids int32 [N]; `key` and `position` are one draw's."""
    zero = tl.zeros([N], tl.uint32)
    w0, w1, w2, w3 = tl.philox(key, (ids // 4).to(tl.uint32), zero + position, zero, zero)
    word = ids % 4
    return gumbel_of(tl.where(word < 2, tl.where(word == 0, w0, w1), tl.where(word == 2, w2, w3)))


@triton.jit
def finished(products, bias, scale, softcap, CAPPED: tl.constexpr):
    """Logits from the products of hidden states and weights."""
    logits = (products + bias) * scale
    if CAPPED:
        # tanh x = 1 − 2 / (e^2x + 1); the exponential may overflow to infinity, which gives 1.
        logits = softcap * (1.0 - 2.0 / (tl.exp(logits * (2.0 / softcap)) + 1.0))
    return logits


@triton.jit
def leaders(scores, raw, index):
    """Of each row of perturbed `scores` [M, N]: best, second best, the place of the best and its logit in `raw`."""
    best = tl.max(scores, 1)
    # The first of equal scores wins, as in `argmax`.
    at = tl.argmax(scores, 1)
    winner = index[None, :] == at[:, None]
    second = tl.max(tl.where(winner, float("-inf"), scores), 1)
    return best, second, at, tl.max(tl.where(winner, raw, float("-inf")), 1)


@triton.jit
def exponentials(raw):
    """Of each row of logits [M, N] the largest, and the sum of exponentials relative to it: 0 where all are −inf."""
    peak = tl.max(raw, 1)
    base = tl.where(peak == float("-inf"), 0.0, peak)
    return peak, tl.sum(tl.exp(raw - base[:, None]), 1)


@triton.jit(do_not_specialize=["parts"])
def choose_kernel(
    best_in,
    second_in,
    token_in,
    logit_in,
    peak_in,
    under_in,
    token_out,
    logprob_out,
    gap_out,
    parts,
    AT_ONCE: tl.constexpr,
):
    """A program for each draw merges its parts in their order. Parts of no possible id change nothing."""
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, AT_ONCE)
    best = tl.full([1], float("-inf"), tl.float32)
    second = tl.full([1], float("-inf"), tl.float32)
    token = tl.zeros([1], tl.int32)
    logit = tl.full([1], float("-inf"), tl.float32)
    peak = tl.full([1], float("-inf"), tl.float32)
    under = tl.zeros([1], tl.float32)
    for first in range(0, parts, AT_ONCE):
        there = first + index < parts
        at = row * parts + first + index
        bests = tl.load(best_in + at, mask=there, other=float("-inf"))
        seconds = tl.load(second_in + at, mask=there, other=float("-inf"))
        tokens = tl.load(token_in + at, mask=there, other=0)
        logits = tl.load(logit_in + at, mask=there, other=float("-inf"))
        peaks = tl.load(peak_in + at, mask=there, other=float("-inf"))
        unders = tl.load(under_in + at, mask=there, other=0.0)
        here = tl.max(bests, 0)
        winner = index == tl.argmax(bests, 0)
        runner = tl.maximum(tl.max(tl.where(winner, float("-inf"), bests), 0), tl.max(seconds, 0))
        second = tl.maximum(tl.maximum(second, runner), tl.minimum(best, here))
        token = tl.where(here > best, tl.max(tl.where(winner, tokens, 0), 0), token)
        logit = tl.where(here > best, tl.max(tl.where(winner, logits, float("-inf")), 0), logit)
        best = tl.maximum(best, here)
        crest = tl.maximum(peak, tl.max(peaks, 0))
        base = tl.where(crest == float("-inf"), 0.0, crest)
        under = under * tl.exp(peak - base) + tl.sum(unders * tl.exp(peaks - base), 0)
        peak = crest
    to = row + tl.arange(0, 1)
    some = under > 0.0
    tl.store(token_out + to, token.to(tl.int64))
    tl.store(logprob_out + to, logit - tl.where(some, peak + tl.log(tl.where(some, under, 1.0)), 0.0))
    tl.store(gap_out + to, tl.where(some, best, 0.0) - second)


def choose(parts: Parts) -> Drawn:
    """The draws that the parts come to."""
    rows, count = parts.best.shape
    tokens = torch.empty(rows, dtype=torch.int64, device=parts.best.device)
    logprobs, gaps = torch.empty((2, rows), device=parts.best.device).unbind()
    choose_kernel[(rows,)](*parts, tokens, logprobs, gaps, count, AT_ONCE=_AT_ONCE)
    return tokens, logprobs, gaps
