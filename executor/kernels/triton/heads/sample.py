"""Gumbel-max sampling from logits: the token, its log-probability and the gap to the runner-up.

One pass over the logits, which stay in memory as they are: a constraint is read as bits, and what filters leave is told
by the cuts of `cut.py`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from qpdsl.executor.kernels.data.token_draws import Drawn, Filters, TokenDraws
from qpdsl.executor.kernels.plain.philox import GUMBEL_MAX
from qpdsl.executor.kernels.triton.common import LAUNCH
from qpdsl.executor.kernels.triton.heads.cut import cut
from qpdsl.executor.kernels.triton.heads.vocabulary_parts import (
    Parts,
    choose,
    contested,
    error_of,
    exact_noise,
    leaders,
    loaded,
    quick_noise,
    row_words,
)

# Ids of one block, ids of one program at least, and parts of a vocabulary at most.
_BLOCK = 1024
_LEAST = 4096
_MOST_PARTS = 64


@triton.jit
def inserted(best, second, third, token, next_token, chosen, next_chosen, score, id, logit):
    """The best three scores with one more, which comes after them, and ids and logits of the best two."""
    first, behind = score > best, score > second
    third = tl.where(behind, second, tl.maximum(third, score))
    second = tl.where(first, best, tl.where(behind, score, second))
    next_token = tl.where(first, token, tl.where(behind, id, next_token))
    next_chosen = tl.where(first, chosen, tl.where(behind, logit, next_chosen))
    best = tl.where(first, score, best)
    token = tl.where(first, id, token)
    chosen = tl.where(first, logit, chosen)
    return best, second, third, token, next_token, chosen, next_chosen


@triton.jit(do_not_specialize=["vocabulary", "parts", "bits_stride"])
def sample_kernel(
    logits,
    rows,
    temperatures,
    keys,
    positions,
    bits,
    lines,
    least,
    until,
    best_out,
    second_out,
    first_logit_out,
    second_logit_out,
    peak_out,
    under_out,
    first_id_out,
    second_id_out,
    vocabulary,
    parts,
    stride,
    bits_stride,
    LARGEST: tl.constexpr,
    BLOCK: tl.constexpr,
    MASKED: tl.constexpr,
    FILTERED: tl.constexpr,
):
    """A program for each draw (axis 0) and part of the vocabulary (axis 1)."""
    draw, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    size = tl.cdiv(tl.cdiv(vocabulary, parts), BLOCK) * BLOCK
    low = part * size
    top = tl.minimum(low + size, vocabulary)
    temperature = tl.load(temperatures + draw)
    noisy = temperature > 0.0
    divisor = tl.where(noisy, temperature, 1.0)
    key = tl.load(keys + draw)
    position = (tl.load(positions + draw) & 0xFFFFFFFF).to(tl.uint32)
    logits += tl.load(rows + draw).to(tl.int64) * stride
    line = tl.full([], -1, tl.int64)
    if MASKED:
        line = tl.load(lines + draw).to(tl.int64)
        bits += tl.maximum(line, 0) * bits_stride
    if FILTERED:
        bound, last = tl.load(least + draw), tl.load(until + draw)

    index = tl.arange(0, BLOCK)
    best = tl.full([1], float("-inf"), tl.float32)
    second = tl.full([1], float("-inf"), tl.float32)
    third = tl.full([1], float("-inf"), tl.float32)
    token = tl.full([1], 0, tl.int32) + low
    next_token = tl.full([1], 0, tl.int32) + low
    chosen = tl.full([1], float("-inf"), tl.float32)
    next_chosen = tl.full([1], float("-inf"), tl.float32)
    peak = tl.full([1], float("-inf"), tl.float32)
    under = tl.zeros([1], tl.float32)
    for first in range(low, top, BLOCK):
        ids = first + index
        raw = loaded(logits, bits, line, ids, top, MASKED)
        crest = tl.maximum(peak, tl.max(raw, 0))
        base = tl.where(crest == float("-inf"), 0.0, crest)
        under = under * tl.exp(peak - base) + tl.sum(tl.exp(raw - base), 0)
        peak = crest

        scores = tl.div_rn(raw, tl.zeros([BLOCK], tl.float32) + divisor)
        if FILTERED:
            scores = tl.where((scores > bound) | ((scores == bound) & (ids <= last)), scores, float("-inf"))
        # Where even the largest noise cannot lift this block's scores to the runner-up, the block is done.
        reach = tl.max(scores, 0) + tl.where(noisy, LARGEST, 0.0)
        if tl.max((reach >= second - 2.0 * error_of(second)).to(tl.int32), 0) == 1:
            if noisy:
                scores += quick_noise(row_words(key, position, first, BLOCK))
            here, behind, rest, at, next_at, logit, next_logit = leaders(scores[None, :], raw[None, :], index)
            best, second, third, token, next_token, chosen, next_chosen = inserted(
                best, second, third, token, next_token, chosen, next_chosen, here, first + at, logit
            )
            best, second, third, token, next_token, chosen, next_chosen = inserted(
                best, second, third, token, next_token, chosen, next_chosen, behind, first + next_at, next_logit
            )
            third = tl.maximum(third, rest)

    if noisy & (tl.max(contested(second, third).to(tl.int32), 0) == 1):
        best = tl.full([1], float("-inf"), tl.float32)
        second = tl.full([1], float("-inf"), tl.float32)
        for first in range(low, top, BLOCK):
            ids = first + index
            raw = loaded(logits, bits, line, ids, top, MASKED)
            scores = tl.div_rn(raw, tl.zeros([BLOCK], tl.float32) + divisor)
            if FILTERED:
                scores = tl.where((scores > bound) | ((scores == bound) & (ids <= last)), scores, float("-inf"))
            scores = (scores.to(tl.float64) + exact_noise(row_words(key, position, first, BLOCK))).to(tl.float32)
            here, behind, rest, at, next_at, logit, next_logit = leaders(scores[None, :], raw[None, :], index)
            best, second, third, token, next_token, chosen, next_chosen = inserted(
                best, second, third, token, next_token, chosen, next_chosen, here, first + at, logit
            )
            best, second, third, token, next_token, chosen, next_chosen = inserted(
                best, second, third, token, next_token, chosen, next_chosen, behind, first + next_at, next_logit
            )
    to = draw * parts + part + tl.arange(0, 1)
    tl.store(best_out + to, best)
    tl.store(second_out + to, second)
    tl.store(first_logit_out + to, chosen)
    tl.store(second_logit_out + to, next_chosen)
    tl.store(peak_out + to, peak)
    tl.store(under_out + to, under)
    tl.store(first_id_out + to, token)
    tl.store(second_id_out + to, next_token)


def sample(
    logits: torch.Tensor,
    draws: TokenDraws,
    bits: torch.Tensor | None = None,
    lines: torch.Tensor | None = None,
    filters: Filters | None = None,
) -> Drawn:
    """Draws a token for each of `draws` from logits [R, V] (float32 or a 16-bit float, last dimension contiguous).

    `bits` int32 [L, ⌈V / 32⌉] and `lines` int32 [D] are as in `dense` of `dense_head.py`: log-probabilities are over
    the allowed ids. Filters choose among those; a draw that rounding could have cut otherwise has no gap. The bits of a
    draw depend on its own logits alone. Twin: `sample` of `executor/engine/step/sampler.py`.
    """
    vocabulary = logits.shape[1]
    count = max(1, min(_MOST_PARTS, vocabulary // _LEAST))
    parts = Parts.empty(draws.count, count, logits.device)
    least = until = close = None
    if filters is not None:
        least, until, close = cut(logits, draws, bits, lines, filters)
    sample_kernel[(draws.count, count)](
        logits,
        draws.rows,
        draws.temperatures,
        draws.keys,
        draws.positions,
        bits,
        lines,
        least,
        until,
        *parts,
        vocabulary,
        count,
        logits.stride(0),
        0 if bits is None else bits.stride(0),
        LARGEST=GUMBEL_MAX,
        BLOCK=_BLOCK,
        MASKED=bits is not None,
        FILTERED=filters is not None,
        **LAUNCH,
    )
    return choose(parts, draws, close)
