"""Gumbel-max sampling in one pass over the logits: the token, its log-probability and the gap to the runner-up.

The noise has the random words of `plain/philox.py`, so a row's token is the one that torch draws. The logarithms are
taken in float64 as there. Those of two libraries may differ in the last bit: after rounding to float32 this changes a
perturbed score in about one of ten million cases, and a token only where such a case meets a near tie.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from qpdsl.executor.kernels.plain.philox import GUMBEL_MAX

# Ids of one block, ids of one program at least, and parts of a vocabulary at most.
_BLOCK = 1024
_LEAST = 4096
_MOST_PARTS = 64


@triton.jit
def gumbel_of(words):
    """Standard Gumbel variates float64 from words uint32: −log(−log(1 − u)), u = (x + ½)·2⁻³²; 1 − u is exact."""
    u = (words.to(tl.float64) + 0.5) * 2.3283064365386963e-10
    return -tl.log(-tl.log(1.0 - u))


@triton.jit(do_not_specialize=["vocabulary", "parts"])
def sample_kernel(
    logits,
    temperatures,
    keys,
    positions,
    best_out,
    second_out,
    token_out,
    logit_out,
    peak_out,
    sum_out,
    vocabulary,
    parts,
    stride,
    LARGEST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program for each row (axis 0) and part of the vocabulary (axis 1).

    Writes the part's best and second best perturbed scores, the id and the logit of the best, and the largest logit
    with the sum of exponentials relative to it.
    """
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    size = tl.cdiv(tl.cdiv(vocabulary, parts), BLOCK) * BLOCK
    low = part * size
    top = tl.minimum(low + size, vocabulary)
    temperature = tl.load(temperatures + row)
    noisy = temperature > 0.0
    divisor = tl.where(noisy, temperature, 1.0)
    key = tl.load(keys + row)
    position = (tl.load(positions + row) & 0xFFFFFFFF).to(tl.uint32)

    best = tl.full([1], float("-inf"), tl.float32)
    second = tl.full([1], float("-inf"), tl.float32)
    token = tl.full([1], 0, tl.int32) + low
    chosen = tl.full([1], float("-inf"), tl.float32)
    peak = tl.full([1], float("-inf"), tl.float32)
    under = tl.zeros([1], tl.float32)
    for first in range(low, top, BLOCK):
        ids = first + tl.arange(0, BLOCK)
        raw = tl.load(logits + row * stride + ids, mask=ids < top, other=float("-inf")).to(tl.float32)
        crest = tl.maximum(peak, tl.max(raw, 0))
        base = tl.where(crest == float("-inf"), 0.0, crest)
        under = under * tl.exp(peak - base) + tl.sum(tl.exp(raw - base), 0)
        peak = crest

        scores = tl.div_rn(raw, tl.zeros([BLOCK], tl.float32) + divisor)
        # Where even the largest noise cannot lift this block's scores to the runner-up, the block is done: most are.
        reach = tl.max(scores, 0) + tl.where(noisy, LARGEST, 0.0)
        if tl.max(tl.where(reach >= second, 1, 0), 0) == 1:
            if noisy:
                block = (first // 4 + tl.arange(0, BLOCK // 4)).to(tl.uint32)
                zero = tl.zeros([BLOCK // 4], tl.uint32)
                w0, w1, w2, w3 = tl.philox(key, block, zero + position, zero, zero)
                words = tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3))
                scores = (scores.to(tl.float64) + gumbel_of(words)).to(tl.float32)
            here = tl.max(scores, 0)
            at = tl.argmax(scores, 0)
            index = tl.arange(0, BLOCK)
            runner = tl.max(tl.where(index == at, float("-inf"), scores), 0)
            logit = tl.max(tl.where(index == at, raw, float("-inf")), 0)
            second = tl.maximum(tl.maximum(second, runner), tl.minimum(best, here))
            # The first of equal scores wins, as in `argmax`.
            token = tl.where(here > best, first + at, token)
            chosen = tl.where(here > best, logit, chosen)
            best = tl.maximum(best, here)
    to = row * parts + part + tl.arange(0, 1)
    tl.store(best_out + to, best)
    tl.store(second_out + to, second)
    tl.store(token_out + to, token)
    tl.store(logit_out + to, chosen)
    tl.store(peak_out + to, peak)
    tl.store(sum_out + to, under)


@triton.jit(do_not_specialize=["parts"])
def choose_kernel(
    best_in,
    second_in,
    token_in,
    logit_in,
    peak_in,
    sum_in,
    token_out,
    logprob_out,
    gap_out,
    parts,
    PARTS: tl.constexpr,
):
    """A program for each row merges its parts."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, PARTS)
    there = part < parts
    at = row * parts + part
    best = tl.load(best_in + at, mask=there, other=float("-inf"))
    second = tl.load(second_in + at, mask=there, other=float("-inf"))
    token = tl.load(token_in + at, mask=there, other=0)
    logit = tl.load(logit_in + at, mask=there, other=float("-inf"))
    peak = tl.load(peak_in + at, mask=there, other=float("-inf"))
    under = tl.load(sum_in + at, mask=there, other=0.0)
    winner = tl.argmax(best, 0)
    here = tl.max(best, 0)
    runner = tl.maximum(tl.max(tl.where(part == winner, float("-inf"), best), 0), tl.max(second, 0))
    crest = tl.max(peak, 0)
    total = crest + tl.log(tl.sum(under * tl.exp(peak - crest), 0))
    tl.store(token_out + row, tl.max(tl.where(part == winner, token, 0), 0).to(tl.int64))
    tl.store(logprob_out + row, tl.max(tl.where(part == winner, logit, float("-inf")), 0) - total)
    tl.store(gap_out + row, here - runner)


def sample(
    logits: torch.Tensor, temperatures: torch.Tensor, keys: torch.Tensor, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Draws a token for each row of `logits` [B, V] (float32 or a 16-bit float, last dimension contiguous).

    `temperatures` float32 [B], 0 for greedy; `keys` int64 [B], the bits of the noise keys; `positions` int64 [B].
    Returns tokens int64 [B], their log-probabilities at temperature 1 float32 [B], and the gaps between the best and
    the second best perturbed score float32 [B], infinite where only one id is possible. Twin: `sample` of
    `executor/engine/step/sampler.py`, without filters.
    """
    batch, vocabulary = logits.shape
    parts = max(1, min(_MOST_PARTS, vocabulary // _LEAST))
    floats = torch.empty((5, batch, parts), dtype=torch.float32, device=logits.device)
    best, second, chosen, peak, under = floats.unbind()
    token = torch.empty((batch, parts), dtype=torch.int32, device=logits.device)
    sample_kernel[(batch, parts)](
        logits,
        temperatures,
        keys,
        positions,
        best,
        second,
        token,
        chosen,
        peak,
        under,
        vocabulary,
        parts,
        logits.stride(0),
        LARGEST=GUMBEL_MAX,
        BLOCK=_BLOCK,
    )
    tokens = torch.empty(batch, dtype=torch.int64, device=logits.device)
    logprobs, gaps = torch.empty((2, batch), dtype=torch.float32, device=logits.device).unbind()
    choose_kernel[(batch,)](
        best,
        second,
        token,
        chosen,
        peak,
        under,
        tokens,
        logprobs,
        gaps,
        parts,
        PARTS=triton.next_power_of_2(parts),
        num_warps=1,
    )
    return tokens, logprobs, gaps
