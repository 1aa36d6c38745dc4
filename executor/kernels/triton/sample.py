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
from qpdsl.executor.kernels.triton.cut import cut
from qpdsl.executor.kernels.triton.vocabulary_parts import (
    Parts,
    choose,
    contested,
    error_of,
    exact_noise,
    leaders,
    loaded,
    noise_at,
    put_part,
    quick_noise,
    row_words,
)

# Ids of one block, ids of one program at least, and parts of a vocabulary at most.
_BLOCK = 1024
_LEAST = 4096
_MAX_PARTS = 64


@triton.jit
def inserted(leading, score, id, logit):
    """The best three scores with one more, which comes after them, and ids and logits of the best two."""
    best, second, third, token, next_token, chosen, next_chosen = leading
    first, behind = score > best, score > second
    third = tl.where(behind, second, tl.maximum(third, score))
    second = tl.where(first, best, tl.where(behind, score, second))
    next_token = tl.where(first, token, tl.where(behind, id, next_token))
    next_chosen = tl.where(first, chosen, tl.where(behind, logit, next_chosen))
    best = tl.where(first, score, best)
    token = tl.where(first, id, token)
    chosen = tl.where(first, logit, chosen)
    return best, second, third, token, next_token, chosen, next_chosen


@triton.jit
def with_block(leading, scores, raw, first):
    """`leading` with a block of perturbed scores from id `first` on, of the logits `raw`; and the block's third."""
    here, behind, rest, at, next_at, logit, next_logit = leaders(
        scores[None, :], raw[None, :], tl.arange(0, raw.shape[0])
    )
    leading = inserted(leading, here, first + at, logit)
    return inserted(leading, behind, first + next_at, next_logit), rest


@triton.jit
def kept_scores(raw, divisor, ids, bound, last):
    """Scores of logits, −inf where a cut leaves them out: below `bound`, or equal to it behind the id `last`."""
    scores = tl.div_rn(raw, tl.zeros(raw.shape, tl.float32) + divisor)
    if bound is not None:
        scores = tl.where((scores > bound) | ((scores == bound) & (ids <= last)), scores, float("-inf"))
    return scores


@triton.jit(do_not_specialize=["vocabulary", "count", "bits_stride"])
def sample_kernel(
    logits,
    draws,
    mask,
    cuts,
    parts,
    vocabulary,
    count,
    stride,
    bits_stride,
    LARGEST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program for each draw (axis 0) and part of the vocabulary (axis 1)."""
    draw, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    size = tl.cdiv(tl.cdiv(vocabulary, count), BLOCK) * BLOCK
    low = part * size
    top = tl.minimum(low + size, vocabulary)
    temperature = tl.load(draws.temperatures + draw)
    noisy = temperature > 0.0
    divisor = tl.where(noisy, temperature, 1.0)
    key, position = noise_at(draws, draw, None)
    row = (logits + tl.load(draws.rows + draw).to(tl.int64) * stride, mask, draw, bits_stride)
    bound, last = cuts
    if bound is not None:
        bound, last = tl.load(bound + draw), tl.load(last + draw)

    index = tl.arange(0, BLOCK)
    lowest = tl.full([1], float("-inf"), tl.float32)
    place = tl.full([1], 0, tl.int32) + low
    best, second, third, chosen, next_chosen = lowest, lowest, lowest, lowest, lowest
    token, next_token = place, place
    peak, under = lowest, tl.zeros([1], tl.float32)
    for first in range(low, top, BLOCK):
        raw = loaded(row, first + index, top)
        crest = tl.maximum(peak, tl.max(raw, 0))
        base = tl.where(crest == float("-inf"), 0.0, crest)
        under = under * tl.exp(peak - base) + tl.sum(tl.exp(raw - base), 0)
        peak = crest

        scores = kept_scores(raw, divisor, first + index, bound, last)
        # Where even the largest noise cannot lift this block's scores to the runner-up, the block is done.
        reach = tl.max(scores, 0) + tl.where(noisy, LARGEST, 0.0)
        if tl.max((reach >= second - 2.0 * error_of(second)).to(tl.int32), 0) == 1:
            if noisy:
                scores += quick_noise(row_words(key, position, first, BLOCK))
            leading = (best, second, third, token, next_token, chosen, next_chosen)
            leading, rest = with_block(leading, scores, raw, first)
            best, second, third, token, next_token, chosen, next_chosen = leading
            third = tl.maximum(third, rest)

    if noisy & (tl.max(contested(second, third).to(tl.int32), 0) == 1):
        best, second = lowest, lowest
        for first in range(low, top, BLOCK):
            raw = loaded(row, first + index, top)
            scores = kept_scores(raw, divisor, first + index, bound, last)
            scores = (scores.to(tl.float64) + exact_noise(row_words(key, position, first, BLOCK))).to(tl.float32)
            leading = (best, second, third, token, next_token, chosen, next_chosen)
            leading, _ = with_block(leading, scores, raw, first)
            best, second, third, token, next_token, chosen, next_chosen = leading
    to = draw * count + part + tl.arange(0, 1)
    put_part(parts, to, best, second, token, next_token, chosen, next_chosen, peak, under, None)


def sample(
    logits: torch.Tensor,
    draws: TokenDraws,
    bits: torch.Tensor | None = None,
    lines: torch.Tensor | None = None,
    filters: Filters | None = None,
) -> Drawn:
    """Draws a token for each of `draws` from logits [R, V] (float32 or a 16-bit float, last dimension contiguous).

    `bits` int32 [L, ⌈V / 32⌉] and `lines` int32 [D] are as in `dense` of `head_kernels.py`: log-probabilities are over
    the allowed ids. Filters choose among those; a draw that rounding could have cut otherwise has no gap. The bits of a
    draw depend on its own logits alone. Twin: `sample` of `executor/engine/step/sampler.py`.
    """
    vocabulary = logits.shape[1]
    count = max(1, min(_MAX_PARTS, vocabulary // _LEAST))
    parts = Parts.empty(draws.size, count, logits.device)
    least = until = close = None
    if filters is not None:
        least, until, close = cut(logits, draws, bits, lines, filters)
    sample_kernel[(draws.size, count)](
        logits,
        draws,
        (bits, lines),
        (least, until),
        parts,
        vocabulary,
        count,
        logits.stride(0),
        0 if bits is None else bits.stride(0),
        LARGEST=GUMBEL_MAX,
        BLOCK=_BLOCK,
        **LAUNCH,
    )
    return choose(parts, draws, close)
