"""Hidden states to drawn tokens: product, mask and Gumbel-max fused, without logits in memory.

Over all ids (`dense`) a program computes the logits of a tile of ids for a tile of draws and writes what they come to;
`choose` merges the tiles. A tile of which no draw allows an id is not computed, so a constraint spares the weights of
most of them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from qpdsl.executor.kernels.data.paged_batch import next_power_of_two
from qpdsl.executor.kernels.data.token_draws import Drawn, HeadWeights, TokenDraws
from qpdsl.executor.kernels.triton.common import DTYPES, INTERPRETED, LAUNCH
from qpdsl.executor.kernels.triton.vocabulary_parts import (
    Parts,
    choose,
    contested,
    exact_noise,
    exponentials,
    finished,
    leaders,
    neighbours_words,
    noise_at,
    put_part,
    quick_noise,
)

# Draws of a tile: the fewest that a device multiplies at once, and the most whose sums stay in registers.
_MIN_DRAWS, _MAX_DRAWS = 16, 64


@triton.jit(do_not_specialize=["count", "vocabulary", "tiles", "bits_stride"])
def dense_kernel(
    hidden,
    head,
    draws,
    mask,
    parts,
    count,
    vocabulary,
    tiles,
    hidden_stride,
    weight_stride,
    bits_stride,
    WIDTH: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    DOT: tl.constexpr,
):
    """A program for each tile of M draws (axis 0) and of N ids (axis 1), so that neighbours read the same weights."""
    part = tl.program_id(1)
    draw = tl.program_id(0) * M + tl.arange(0, M)
    live = draw < count
    index = tl.arange(0, N)
    ids = part * N + index
    there = ids < vocabulary
    allowed = live[:, None] & there[None, :]
    bits, lines = mask
    if bits is not None:
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
        row = tl.load(draws.rows + draw, mask=live, other=0).to(tl.int64)
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
                head.weight + ids.to(tl.int64)[None, :] * weight_stride + (first + d)[:, None],
                mask=there[None, :] & within[:, None],
                other=0.0,
            )
            products = tl.dot(h.to(DOT), w.to(DOT), products, input_precision="tf32x3")
        added = tl.zeros([N], tl.float32)
        if head.bias is not None:
            added = tl.load(head.bias + ids, mask=there, other=0.0).to(tl.float32)
        raw = finished(products, added[None, :], head)
        raw = tl.where(allowed, raw, float("-inf"))
        peak, under = exponentials(raw)

        temperature = tl.load(draws.temperatures + draw, mask=live, other=0.0)
        noisy = temperature > 0.0
        scores = tl.div_rn(raw, tl.zeros([M, N], tl.float32) + tl.where(noisy, temperature, 1.0)[:, None])
        perturbed = scores
        if tl.max(noisy.to(tl.int32), 0) == 1:
            key, position = noise_at(draws, draw, live)
            noise32 = quick_noise(neighbours_words(key, position, part * N, M, N))
            perturbed = tl.where(noisy[:, None], scores + noise32, scores)
        best, second, third, at, next_at, logit, next_logit = leaders(perturbed, raw, index)
        if tl.max((noisy & contested(second, third)).to(tl.int32), 0) == 1:
            key, position = noise_at(draws, draw, live)
            noise = exact_noise(neighbours_words(key, position, part * N, M, N))
            perturbed = tl.where(noisy[:, None], (scores.to(tl.float64) + noise).to(tl.float32), scores)
            best, second, third, at, next_at, logit, next_logit = leaders(perturbed, raw, index)
    to = draw.to(tl.int64) * tiles + part
    first_id, second_id = part * N + at, part * N + next_at
    put_part(parts, to, best, second, first_id, second_id, logit, next_logit, peak, under, live)


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
    count = _MIN_DRAWS if deterministic else min(_MAX_DRAWS, max(_MIN_DRAWS, next_power_of_two(draws.size)))
    ids, depth = (64, 32) if wide else (128, 64)
    tiles = -(-vocabulary // ids)
    parts = Parts.empty(draws.size, tiles, hidden.device)
    dense_kernel[(-(-draws.size // count), tiles)](
        hidden,
        head,
        draws,
        (bits, lines),
        parts,
        draws.size,
        vocabulary,
        tiles,
        hidden.stride(0),
        head.weight.stride(0),
        0 if bits is None else bits.stride(0),
        WIDTH=width,
        M=count,
        N=ids,
        K=depth,
        DOT=tl.float32 if wide or INTERPRETED else DTYPES[hidden.dtype],
        num_warps=4 if count <= 32 else 8,
        **LAUNCH,
    )
    return choose(parts, draws)
