"""Hidden states to drawn tokens where few ids are allowed: only their rows of the weights are read.

Each draw has a list of its own. Draws under one mask read the same rows, and a device's cache serves all but the first,
so no union of the lists is made.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from qpdsl.executor.kernels.data.token_draws import Drawn, HeadWeights, TokenDraws
from qpdsl.executor.kernels.triton.common import LAUNCH
from qpdsl.executor.kernels.triton.heads.vocabulary_parts import (
    Parts,
    choose,
    contested,
    exact_noise,
    exponentials,
    finished,
    leaders,
    listed_words,
    quick_noise,
)

# Ids of one program, so few that a short list keeps many multiprocessors busy; and columns that are read at once.
_IDS = 8
_COLUMNS = 256


@triton.jit(do_not_specialize=["parts"])
def sparse_kernel(
    hidden,
    weight,
    bias,
    rows,
    temperatures,
    keys,
    positions,
    offsets,
    ids,
    best_out,
    second_out,
    first_logit_out,
    second_logit_out,
    peak_out,
    under_out,
    first_id_out,
    second_id_out,
    parts,
    hidden_stride,
    weight_stride,
    scale,
    softcap,
    WIDTH: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    BIASED: tl.constexpr,
    CAPPED: tl.constexpr,
):
    """A program for each draw (axis 0) and N ids of its list (axis 1)."""
    draw, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    index = tl.arange(0, N)
    begin, end = tl.load(offsets + draw), tl.load(offsets + draw + 1)
    best = tl.full([1], float("-inf"), tl.float32)
    second = tl.full([1], float("-inf"), tl.float32)
    chosen = tl.zeros([1], tl.int32)
    next_chosen = tl.zeros([1], tl.int32)
    logit = tl.full([1], float("-inf"), tl.float32)
    next_logit = tl.full([1], float("-inf"), tl.float32)
    peak = tl.full([1], float("-inf"), tl.float32)
    under = tl.zeros([1], tl.float32)
    # Past the end of a list there is nothing to read.
    if begin + part * N < end:
        place = begin + part * N + index
        there = place < end
        token = tl.load(ids + place, mask=there, other=0)
        d = tl.arange(0, K)
        from_row = hidden + tl.load(rows + draw).to(tl.int64) * hidden_stride
        products = tl.zeros([N, K], tl.float32)
        for first in range(0, WIDTH, K):
            within = first + d < WIDTH
            h = tl.load(from_row + first + d, mask=within, other=0.0).to(tl.float32)
            w = tl.load(
                weight + token.to(tl.int64)[:, None] * weight_stride + (first + d)[None, :],
                mask=there[:, None] & within[None, :],
                other=0.0,
            ).to(tl.float32)
            products += w * h[None, :]
        added = tl.zeros([N], tl.float32)
        if BIASED:
            added = tl.load(bias + token, mask=there, other=0.0).to(tl.float32)
        raw = finished(tl.sum(products, 1), added, scale, softcap, CAPPED)
        raw = tl.where(there, raw, float("-inf"))
        temperature = tl.load(temperatures + draw)
        noisy = temperature > 0.0
        scores = tl.div_rn(raw, tl.zeros([N], tl.float32) + tl.where(noisy, temperature, 1.0))
        perturbed = scores
        if noisy:
            position = (tl.load(positions + draw) & 0xFFFFFFFF).to(tl.uint32)
            perturbed = scores + quick_noise(listed_words(tl.load(keys + draw), position, token, N))
        best, second, third, at, next_at, logit, next_logit = leaders(perturbed[None, :], raw[None, :], index)
        if noisy & (tl.max(contested(second, third).to(tl.int32), 0) == 1):
            position = (tl.load(positions + draw) & 0xFFFFFFFF).to(tl.uint32)
            noise = exact_noise(listed_words(tl.load(keys + draw), position, token, N))
            perturbed = (scores.to(tl.float64) + noise).to(tl.float32)
            best, second, third, at, next_at, logit, next_logit = leaders(perturbed[None, :], raw[None, :], index)
        chosen = tl.max(tl.where(index[None, :] == at[:, None], token[None, :], 0), 1)
        next_chosen = tl.max(tl.where(index[None, :] == next_at[:, None], token[None, :], 0), 1)
        peak, under = exponentials(raw[None, :])
    to = draw * parts + part + tl.arange(0, 1)
    tl.store(best_out + to, best)
    tl.store(second_out + to, second)
    tl.store(first_logit_out + to, logit)
    tl.store(second_logit_out + to, next_logit)
    tl.store(peak_out + to, peak)
    tl.store(under_out + to, under)
    tl.store(first_id_out + to, chosen)
    tl.store(second_id_out + to, next_chosen)


def sparse(
    hidden: torch.Tensor,
    head: HeadWeights,
    draws: TokenDraws,
    offsets: torch.Tensor,
    ids: torch.Tensor,
    longest: int,
) -> Drawn:
    """Draws a token for each of `draws` from hidden states [R, d], the last dimension contiguous.

    The allowed ids of draw i are `ids[offsets[i]:offsets[i + 1]]`, ascending: `ids` int32, `offsets` int32 [D + 1], the
    longest list `longest` ids, which the host knows without asking the device. Sums are float32. The bits of a draw
    depend on its own hidden state and list alone. Twin: `sparse` of `plain/head_twins.py`.
    """
    count = max(1, -(-longest // _IDS))
    parts = Parts.empty(draws.count, count, hidden.device)
    sparse_kernel[(draws.count, count)](
        hidden,
        head.weight,
        head.bias,
        draws.rows,
        draws.temperatures,
        draws.keys,
        draws.positions,
        offsets,
        ids,
        *parts,
        count,
        hidden.stride(0),
        head.weight.stride(0),
        head.scale,
        head.softcap or 0.0,
        WIDTH=head.weight.shape[1],
        N=_IDS,
        K=_COLUMNS,
        BIASED=head.bias is not None,
        CAPPED=head.softcap is not None,
        **LAUNCH,
    )
    return choose(parts, draws)
