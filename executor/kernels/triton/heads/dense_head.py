"""Hidden states to drawn tokens over all ids: product, mask and Gumbel-max fused, without logits in memory.

A program computes the logits of a tile of ids for a tile of draws and writes what they come to; `choose` merges the
tiles. A tile of which no draw allows an id is not computed, so a constraint spares the weights of most of them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from qpdsl.executor.kernels.data.rounding import next_power_of_two
from qpdsl.executor.kernels.data.token_draws import Drawn, HeadWeights, TokenDraws
from qpdsl.executor.kernels.triton.common import DTYPES, INTERPRETED, LAUNCH
from qpdsl.executor.kernels.triton.heads.vocabulary_parts import (
    Parts,
    choose,
    contested,
    exact_noise,
    exponentials,
    finished,
    leaders,
    neighbours_words,
    quick_noise,
)

# Draws of a tile: the fewest that a device multiplies at once, and the most whose sums stay in registers.
_LEAST_DRAWS, _MOST_DRAWS = 16, 64


@triton.jit(do_not_specialize=["draws", "vocabulary", "parts", "bits_stride"])
def dense_kernel(
    hidden,
    weight,
    bias,
    rows,
    temperatures,
    keys,
    positions,
    bits,
    lines,
    best_out,
    second_out,
    first_logit_out,
    second_logit_out,
    peak_out,
    under_out,
    first_id_out,
    second_id_out,
    draws,
    vocabulary,
    parts,
    hidden_stride,
    weight_stride,
    bits_stride,
    scale,
    softcap,
    WIDTH: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    DOT: tl.constexpr,
    BIASED: tl.constexpr,
    CAPPED: tl.constexpr,
    MASKED: tl.constexpr,
):
    """A program for each tile of M draws (axis 0) and of N ids (axis 1), so that neighbours read the same weights."""
    part = tl.program_id(1)
    draw = tl.program_id(0) * M + tl.arange(0, M)
    live = draw < draws
    index = tl.arange(0, N)
    ids = part * N + index
    there = ids < vocabulary
    allowed = live[:, None] & there[None, :]
    if MASKED:
        line = tl.load(lines + draw, mask=live, other=-1).to(tl.int64)
        own = line >= 0
        words = tl.load(
            bits + tl.where(own, line, 0)[:, None] * bits_stride + (ids // 32)[None, :],
            mask=allowed & own[:, None],
            other=-1,
        )
        allowed = allowed & (((words >> (ids % 32)[None, :]) & 1) != 0)

    best = tl.full([M], float("-inf"), tl.float32)
    second = tl.full([M], float("-inf"), tl.float32)
    at = tl.zeros([M], tl.int32)
    next_at = tl.zeros([M], tl.int32)
    logit = tl.full([M], float("-inf"), tl.float32)
    next_logit = tl.full([M], float("-inf"), tl.float32)
    peak = tl.full([M], float("-inf"), tl.float32)
    under = tl.zeros([M], tl.float32)
    if tl.max(tl.max(allowed.to(tl.int32), 1), 0) == 1:
        row = tl.load(rows + draw, mask=live, other=0).to(tl.int64)
        d = tl.arange(0, K)
        products = tl.zeros([M, N], tl.float32)
        for first in range(0, WIDTH, K):
            within = first + d < WIDTH
            h = tl.load(
                hidden + row[:, None] * hidden_stride + (first + d)[None, :],
                mask=live[:, None] & within[None, :],
                other=0.0,
            )
            w = tl.load(
                weight + ids.to(tl.int64)[None, :] * weight_stride + (first + d)[:, None],
                mask=there[None, :] & within[:, None],
                other=0.0,
            )
            products = tl.dot(h.to(DOT), w.to(DOT), products, input_precision="tf32x3")
        added = tl.zeros([N], tl.float32)
        if BIASED:
            added = tl.load(bias + ids, mask=there, other=0.0).to(tl.float32)
        raw = finished(products, added[None, :], scale, softcap, CAPPED)
        raw = tl.where(allowed, raw, float("-inf"))
        peak, under = exponentials(raw)

        temperature = tl.load(temperatures + draw, mask=live, other=0.0)
        noisy = temperature > 0.0
        scores = tl.div_rn(raw, tl.zeros([M, N], tl.float32) + tl.where(noisy, temperature, 1.0)[:, None])
        perturbed = scores
        if tl.max(noisy.to(tl.int32), 0) == 1:
            key = tl.load(keys + draw, mask=live, other=0)
            position = (tl.load(positions + draw, mask=live, other=0) & 0xFFFFFFFF).to(tl.uint32)
            noise32 = quick_noise(neighbours_words(key, position, part * N, M, N))
            perturbed = tl.where(noisy[:, None], scores + noise32, scores)
        best, second, third, at, next_at, logit, next_logit = leaders(perturbed, raw, index)
        if tl.max((noisy & contested(second, third)).to(tl.int32), 0) == 1:
            key = tl.load(keys + draw, mask=live, other=0)
            position = (tl.load(positions + draw, mask=live, other=0) & 0xFFFFFFFF).to(tl.uint32)
            noise = exact_noise(neighbours_words(key, position, part * N, M, N))
            perturbed = tl.where(noisy[:, None], (scores.to(tl.float64) + noise).to(tl.float32), scores)
            best, second, third, at, next_at, logit, next_logit = leaders(perturbed, raw, index)
    to = draw.to(tl.int64) * parts + part
    tl.store(best_out + to, best, mask=live)
    tl.store(second_out + to, second, mask=live)
    tl.store(first_logit_out + to, logit, mask=live)
    tl.store(second_logit_out + to, next_logit, mask=live)
    tl.store(peak_out + to, peak, mask=live)
    tl.store(under_out + to, under, mask=live)
    tl.store(first_id_out + to, part * N + at, mask=live)
    tl.store(second_id_out + to, part * N + next_at, mask=live)


def dense(
    hidden: torch.Tensor,
    head: HeadWeights,
    draws: TokenDraws,
    bits: torch.Tensor | None = None,
    lines: torch.Tensor | None = None,
    deterministic: bool = False,
) -> Drawn:
    """Draws a token for each of `draws` from hidden states [R, d], the last dimension contiguous.

    `bits` int32 [L, ⌈V / 32⌉]: lines of allowed ids, the lowest bit the first of 32; `lines` int32 [D]: the line of
    each draw, −1 where every id may come. Both are None where nothing is masked. Sums are float32. `deterministic`: the
    bits of a draw depend on its own hidden state alone, since every tile has the same size; else on the number of draws
    too.
    Twin: `dense` of `plain/head_twins.py`.
    """
    vocabulary, width = head.weight.shape
    wide = torch.float32 in (head.weight.dtype, hidden.dtype)
    count = _LEAST_DRAWS if deterministic else min(_MOST_DRAWS, max(_LEAST_DRAWS, next_power_of_two(draws.count)))
    ids, depth = (64, 32) if wide else (128, 64)
    tiles = -(-vocabulary // ids)
    parts = Parts.empty(draws.count, tiles, hidden.device)
    dense_kernel[(-(-draws.count // count), tiles)](
        hidden,
        head.weight,
        head.bias,
        draws.rows,
        draws.temperatures,
        draws.keys,
        draws.positions,
        bits,
        lines,
        *parts,
        draws.count,
        vocabulary,
        tiles,
        hidden.stride(0),
        head.weight.stride(0),
        0 if bits is None else bits.stride(0),
        head.scale,
        head.softcap or 0.0,
        WIDTH=width,
        M=count,
        N=ids,
        K=depth,
        DOT=tl.float32 if wide or INTERPRETED else DTYPES[hidden.dtype],
        BIASED=head.bias is not None,
        CAPPED=head.softcap is not None,
        MASKED=bits is not None,
        num_warps=4 if count <= 32 else 8,
        **LAUNCH,
    )
    return choose(parts, draws)
