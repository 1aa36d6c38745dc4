"""Draws over a vocabulary in parts: noise for a tile of ids, what a part comes to, and the parts merged in their order.

A part is summed up by the two ids that can lead it, and the largest logit with the sum of exponentials relative to it.
So the log-probability of a token is known without all logits at once (online softmax: Milakov and Gimelshein, 2018),
and Gumbel-max needs none of them twice.

The noise has the random words of `plain/philox.py`, and a draw's token is the one that torch draws, which takes the
logarithms in float64. Devices differ in how fast they are at that, up to 64 times, so it is done for few ids: noise in
float32 tells which two ids can lead a part, since it errs by less than `_NOISE_ERROR`, and only where a third is that
near are all ids of the part done in float64. `choose` does the leaders of the parts among which the winner and the
runner-up are. Logarithms of two libraries may differ in the last bit: after rounding to float32 this changes a
perturbed score in about one of ten million cases, and a token only where such a case meets a near tie.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from qpdsl.executor.kernels.data.token_draws import Drawn, TokenDraws
from qpdsl.executor.kernels.triton.common import LAUNCH

# Parts that are merged at a time. Fixed, so that the bits of a sum do not depend on how many parts others have.
_AT_ONCE = 128
# More than noise in float32 can err: a device's logarithm has a relative error of 2**-22 (lg2.approx, PTX ISA), noise
# is at most 22.9, and the errors of the inner logarithm add up to less than 3e-6.
_NOISE_ERROR = tl.constexpr(2e-5)
# More than two roundings of a score to float32 can err, relative to it.
_SCORE_ERROR = tl.constexpr(2.0**-22)


class Parts(NamedTuple):
    """What parts of a vocabulary come to: float32 [B, parts], ids int32.

    `best` and `second`: the perturbed scores of `first_id` and `second_id`, about, of which `first_logit` and
    `second_logit` are the logits, −inf where there is no such id. `under`: the sum of exponentials relative to `peak`.
    """

    best: torch.Tensor
    second: torch.Tensor
    first_logit: torch.Tensor
    second_logit: torch.Tensor
    peak: torch.Tensor
    under: torch.Tensor
    first_id: torch.Tensor
    second_id: torch.Tensor

    @classmethod
    def empty(cls, rows: int, parts: int, device: torch.device) -> Parts:
        """Room for the parts of so many draws."""
        numbers = aligned(6, (rows, parts), torch.float32, device)
        return cls(*numbers, *aligned(2, (rows, parts), torch.int32, device))


def aligned(count: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> list[torch.Tensor]:
    """So many empty tensors by one allocation, of numbers of four bytes, each from a multiple of 16 bytes on.

    For other pointers Triton compiles a kernel once more, and that in the middle of a run.
    """
    size = math.prod(shape)
    room = torch.empty((count, -(-size // 4) * 4), dtype=dtype, device=device)
    return [part[:size].view(shape) for part in room.unbind()]


@triton.jit
def exact_noise(words):
    """Standard Gumbel variates float64 from words uint32: −log(−log(1 − u)), u = (x + ½)·2⁻³²; 1 − u is exact."""
    u = (words.to(tl.float64) + 0.5) * 2.3283064365386963e-10
    return -tl.log(-tl.log(1.0 - u))


@triton.jit
def quick_noise(words):
    """The same in float32, with an error below `_NOISE_ERROR`.

    1 − u is taken from the complement of the word, and −log(1 − u) by its series where u is small: there the noise is
    large, and a difference from 1 would have lost the digits that it depends on.
    """
    u = words.to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10
    rest = (words ^ 0xFFFFFFFF).to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10
    series = 0.14285714285714285 + u * 0.125
    series = 0.16666666666666666 + u * series
    series = 0.2 + u * series
    series = 0.25 + u * series
    series = 0.3333333333333333 + u * series
    series = 0.5 + u * series
    series = u * (1.0 + u * series)
    return -tl.log(tl.where(u < 0.125, series, -tl.log(rest)))


@triton.jit
def neighbours_words(key, position, first, M: tl.constexpr, N: tl.constexpr):
    """Random words uint32 [M, N] of N neighbouring ids from `first` on, a multiple of 4; `key` and `position` [M]."""
    zero = tl.zeros([M, N // 4], tl.uint32)
    block = zero + (first // 4 + tl.arange(0, N // 4)).to(tl.uint32)[None, :]
    w0, w1, w2, w3 = tl.philox(key[:, None], block, zero + position[:, None], zero, zero)
    return tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3))


@triton.jit
def row_words(key, position, first, N: tl.constexpr):
    """The same [N], of one draw."""
    zero = tl.zeros([N // 4], tl.uint32)
    block = (first // 4 + tl.arange(0, N // 4)).to(tl.uint32)
    w0, w1, w2, w3 = tl.philox(key, block, zero + position, zero, zero)
    return tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3))


@triton.jit
def listed_words(key, position, ids, N: tl.constexpr):
    """Random words uint32 [N] of any ids int32 [N]; `key` and `position` are one draw's."""
    zero = tl.zeros([N], tl.uint32)
    w0, w1, w2, w3 = tl.philox(key, (ids // 4).to(tl.uint32), zero + position, zero, zero)
    word = ids % 4
    return tl.where(word < 2, tl.where(word == 0, w0, w1), tl.where(word == 2, w2, w3))


@triton.jit
def noise_at(draws, draw, live):
    """The noise keys of draws, and their positions uint32, where they are `live`; all of them where that is None."""
    position = tl.load(draws.positions + draw, mask=live)
    return tl.load(draws.keys + draw, mask=live), (position & 0xFFFFFFFF).to(tl.uint32)


@triton.jit
def finished(products, bias, head):
    """Logits from the products of hidden states and weights."""
    logits = (products + bias) * head.scale
    if head.softcap is not None:
        # tanh x = 1 − 2 / (e^2x + 1); the exponential may overflow to infinity, which gives 1.
        logits = head.softcap * (1.0 - 2.0 / (tl.exp(logits * (2.0 / head.softcap)) + 1.0))
    return logits


@triton.jit
def loaded(row, ids, top):
    """Logits float32 [N] of ids below `top`, −inf for others and for those that the draw's line of bits does not allow.

    `row`: where the logits of the draw lie; lines of bits and the line of each draw, −1 where all may come, or two
    None; the draw; and the words of a line.
    """
    logits, mask, draw, stride = row
    bits, lines = mask
    raw = tl.load(logits + ids, mask=ids < top, other=float("-inf")).to(tl.float32)
    if bits is not None:
        line = tl.load(lines + draw).to(tl.int64)
        own = bits + tl.maximum(line, 0) * stride
        words = tl.where(line < 0, -1, tl.load(own + ids // 32, mask=ids < top, other=-1))
        raw = tl.where(((words >> (ids % 32)) & 1) != 0, raw, float("-inf"))
    return raw


@triton.jit
def error_of(score):
    """By how much less than the true one a perturbed score in float32 may be, or more."""
    return _NOISE_ERROR + _SCORE_ERROR * tl.abs(score)


@triton.jit
def leaders(scores, raw, index):
    """Of each row of perturbed `scores` [M, N]: best, second and third, and places and logits of the best two."""
    best = tl.max(scores, 1)
    # The first of equal scores wins, as in `argmax`.
    at = tl.argmax(scores, 1)
    winner = index[None, :] == at[:, None]
    others = tl.where(winner, float("-inf"), scores)
    second = tl.max(others, 1)
    # Where nothing else is possible, `argmax` may find the winner again.
    at_second = tl.argmax(others, 1)
    runner = (index[None, :] == at_second[:, None]) & (others > float("-inf"))
    third = tl.max(tl.where(runner, float("-inf"), others), 1)
    logit = tl.max(tl.where(winner, raw, float("-inf")), 1)
    logit_second = tl.max(tl.where(runner, raw, float("-inf")), 1)
    return best, second, third, at, at_second, logit, logit_second


@triton.jit
def contested(second, third):
    """Whether the two ids with the best scores in float32 may not be those with the best true ones."""
    return (third > float("-inf")) & (third >= second - 2.0 * error_of(second))


@triton.jit
def exponentials(raw):
    """Of each row of logits [M, N] the largest, and the sum of exponentials relative to it: 0 where all are −inf."""
    peak = tl.max(raw, 1)
    base = tl.where(peak == float("-inf"), 0.0, peak)
    return peak, tl.sum(tl.exp(raw - base[:, None]), 1)


@triton.jit
def true_scores(about, logits, ids, floor, divisor, noisy, key, position, N: tl.constexpr):
    """The perturbed scores float32 [N] of ids with the given logits, −inf for those that are below `floor` about."""
    can = (about > float("-inf")) & (about >= floor)
    scores = tl.where(can, tl.div_rn(logits, tl.zeros([N], tl.float32) + divisor), float("-inf"))
    if noisy & (tl.max(can.to(tl.int32), 0) == 1):
        noise = exact_noise(listed_words(key, position, ids, N))
        scores = tl.where(can, (scores.to(tl.float64) + noise).to(tl.float32), float("-inf"))
    return scores


@triton.jit
def put_part(parts, at, best, second, id, next_id, logit, next_logit, peak, under, live):
    """Writes what parts come to, where they are `live`; all of them where that is None."""
    tl.store(parts.best + at, best, mask=live)
    tl.store(parts.second + at, second, mask=live)
    tl.store(parts.first_logit + at, logit, mask=live)
    tl.store(parts.second_logit + at, next_logit, mask=live)
    tl.store(parts.peak + at, peak, mask=live)
    tl.store(parts.under + at, under, mask=live)
    tl.store(parts.first_id + at, id, mask=live)
    tl.store(parts.second_id + at, next_id, mask=live)


@triton.jit(do_not_specialize=["count"])
def choose_kernel(draws, close, parts, token_out, logprob_out, gap_out, count, AT_ONCE: tl.constexpr):
    """A program for each draw merges its parts in their order. Parts of no possible id change nothing."""
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, AT_ONCE)
    temperature = tl.load(draws.temperatures + row)
    noisy = temperature > 0.0
    divisor = tl.where(noisy, temperature, 1.0)
    key, position = noise_at(draws, row, None)
    leader = tl.full([1], float("-inf"), tl.float32)
    runner = tl.full([1], float("-inf"), tl.float32)
    peak = tl.full([1], float("-inf"), tl.float32)
    under = tl.zeros([1], tl.float32)
    for first in range(0, count, AT_ONCE):
        there = first + index < count
        at = row * count + first + index
        bests = tl.load(parts.best + at, mask=there, other=float("-inf"))
        seconds = tl.load(parts.second + at, mask=there, other=float("-inf"))
        peaks = tl.load(parts.peak + at, mask=there, other=float("-inf"))
        unders = tl.load(parts.under + at, mask=there, other=0.0)
        here = tl.max(bests, 0)
        others = tl.where(index == tl.argmax(bests, 0), float("-inf"), bests)
        behind = tl.maximum(tl.max(others, 0), tl.max(seconds, 0))
        runner = tl.maximum(tl.maximum(runner, behind), tl.minimum(leader, here))
        leader = tl.maximum(leader, here)
        crest = tl.maximum(peak, tl.max(peaks, 0))
        base = tl.where(crest == float("-inf"), 0.0, crest)
        under = under * tl.exp(peak - base) + tl.sum(unders * tl.exp(peaks - base), 0)
        peak = crest

    # The winner and the runner-up are among those that are not certainly behind the second.
    floor = tl.where(runner > float("-inf"), runner - 2.0 * error_of(runner), runner)
    best = tl.full([1], float("-inf"), tl.float32)
    second = tl.full([1], float("-inf"), tl.float32)
    token = tl.zeros([1], tl.int32)
    logit = tl.full([1], float("-inf"), tl.float32)
    for first in range(0, count, AT_ONCE):
        there = first + index < count
        at = row * count + first + index
        bests = tl.load(parts.best + at, mask=there, other=float("-inf"))
        if tl.max((tl.max(bests, 0) >= floor).to(tl.int32), 0) == 1:
            seconds = tl.load(parts.second + at, mask=there, other=float("-inf"))
            ids = tl.load(parts.first_id + at, mask=there, other=0)
            logits = tl.load(parts.first_logit + at, mask=there, other=float("-inf"))
            next_ids = tl.load(parts.second_id + at, mask=there, other=0)
            next_logits = tl.load(parts.second_logit + at, mask=there, other=float("-inf"))
            scores = true_scores(bests, logits, ids, floor, divisor, noisy, key, position, AT_ONCE)
            next_scores = true_scores(seconds, next_logits, next_ids, floor, divisor, noisy, key, position, AT_ONCE)
            here = tl.maximum(tl.max(scores, 0), tl.max(next_scores, 0))
            wins, next_wins = scores == here, next_scores == here
            # The first of equal scores wins, as in `argmax`.
            some = 2147483647
            winner = tl.minimum(tl.min(tl.where(wins, ids, some), 0), tl.min(tl.where(next_wins, next_ids, some), 0))
            own = tl.max(tl.where(wins & (ids == winner), logits, float("-inf")), 0)
            next_own = tl.max(tl.where(next_wins & (next_ids == winner), next_logits, float("-inf")), 0)
            equals = tl.sum(wins.to(tl.int32), 0) + tl.sum(next_wins.to(tl.int32), 0)
            behind = tl.maximum(
                tl.max(tl.where(wins, float("-inf"), scores), 0),
                tl.max(tl.where(next_wins, float("-inf"), next_scores), 0),
            )
            behind = tl.where(equals > 1, here, behind)
            second = tl.maximum(tl.maximum(second, behind), tl.minimum(best, here))
            token = tl.where(here > best, winner, token)
            logit = tl.where(here > best, tl.maximum(own, next_own), logit)
            best = tl.maximum(best, here)
    to = row + tl.arange(0, 1)
    # Not `> 0`: where a logit is no number nor is the sum, and that must show in the log-probability.
    some = under != 0.0
    gap = tl.where(some, best, 0.0) - second
    if close is not None:
        gap = tl.where(tl.load(close + row) != 0, 0.0, gap)
    tl.store(token_out + to, token.to(tl.int64))
    tl.store(logprob_out + to, logit - tl.where(some, peak + tl.log(tl.where(some, under, 1.0)), 0.0))
    tl.store(gap_out + to, gap)


def choose(parts: Parts, draws: TokenDraws, close: torch.Tensor | None = None) -> Drawn:
    """The draws that the parts come to; no gap is left to those that are `close` to the cut of a filter, int32 [B]."""
    rows, count = parts.best.shape
    tokens = torch.empty(rows, dtype=torch.int64, device=parts.best.device)
    logprobs, gaps = aligned(2, (rows,), torch.float32, parts.best.device)
    choose_kernel[(rows,)](draws, close, parts, tokens, logprobs, gaps, count, AT_ONCE=_AT_ONCE, **LAUNCH)
    return tokens, logprobs, gaps
