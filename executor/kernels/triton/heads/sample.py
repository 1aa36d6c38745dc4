"""Gumbel-max sampling in one pass over the logits: the token, its log-probability and the gap to the runner-up."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from qpdsl.executor.kernels.data.token_draws import Drawn
from qpdsl.executor.kernels.plain.philox import GUMBEL_MAX
from qpdsl.executor.kernels.triton.heads.vocabulary_parts import Parts, choose, gumbel_of

# Ids of one block, ids of one program at least, and parts of a vocabulary at most.
_BLOCK = 1024
_LEAST = 4096
_MOST_PARTS = 64


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
    under_out,
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
    tl.store(under_out + to, under)


def sample(logits: torch.Tensor, temperatures: torch.Tensor, keys: torch.Tensor, positions: torch.Tensor) -> Drawn:
    """Draws a token for each row of `logits` [B, V] (float32 or a 16-bit float, last dimension contiguous).

    `temperatures` float32 [B], 0 for greedy; `keys` int64 [B], the bits of the noise keys; `positions` int64 [B].
    Twin: `sample` of `executor/engine/step/sampler.py`, without filters.
    """
    batch, vocabulary = logits.shape
    count = max(1, min(_MOST_PARTS, vocabulary // _LEAST))
    parts = Parts.empty(batch, count, logits.device)
    sample_kernel[(batch, count)](
        logits,
        temperatures,
        keys,
        positions,
        *parts,
        vocabulary,
        count,
        logits.stride(0),
        LARGEST=GUMBEL_MAX,
        BLOCK=_BLOCK,
    )
    return choose(parts)
