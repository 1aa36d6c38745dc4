"""Which ids top-k, top-p and min-p leave to a draw, without sorting them.

What is left of a row is an upper set of its scores: all above a score, and the first of those that equal it. So a row
needs one number, and one more where equals are cut apart. It is found by bisection over the scores, as FlashInfer finds
its pivots (Ye et al., 2025, "Sorting-Free GPU Kernels for LLM Sampling"), here to the end: a cut must be exact for a
seed to mean one token, and its neighbours tell whether rounding could have moved it.

A row is read twice. The first time tells its maximum, the sum of its exponentials, and for top-k the maxima of groups
of ids: as many ids are at least the k-th of these, so no id below it is left. Top-p leaves no id whose probability is
below (1 − p) / V, since all of those together have less than 1 − p, and min-p says itself what is below it. The second
time the candidates that such a bound leaves are written out in the order of their ids: mostly a few hundred, which a
program bisects while they are in its caches. Their probabilities are summed as integers, so that no sum depends on its
order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from qpdsl.executor.kernels.data.token_draws import Filters, TokenDraws
from qpdsl.executor.kernels.triton.common import LAUNCH
from qpdsl.executor.kernels.triton.vocabulary_parts import aligned, loaded

# Ids that are read at a time, candidates that are read at a time, and ids of a group whose maximum is noted.
_BLOCK, _CANDIDATES, _GROUP = 4096, 1024, 32
# Bytes of the candidates of all rows of a launch.
_MAX_BYTES = 1 << 27

# As in `executor/engine/step/sampler.py`: scores and probabilities nearer than this could be ordered otherwise.
NEAR_SCORE = 1e-4
NEAR_PROBABILITY = 1e-6

# A probability is its exponential relative to the row's largest, in units of 2**-44: the sum of 2**18 fits 64 bits.
_UNIT = tl.constexpr(2.0**44)
# Less than any key of a number.
_NO_KEY = tl.constexpr(-(2**31))
# By how much bounds from sums in float32 are lowered.
_SLACK = tl.constexpr(1e-3)


@triton.jit
def key_of(scores):
    """int32 in the order of the scores float32."""
    bits = scores.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def score_of(key):
    """The score of a key."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def weights_of(exponentials):
    """Exponentials as integers, which are summed without rounding."""
    return (exponentials * _UNIT).to(tl.int64)


@triton.jit
def least_kept(scores, exponentials, count, low, high, most, N: tl.constexpr, WEIGHED: tl.constexpr):
    """The key of the least of `count` scores above which are fewer than `most` of them, or with WEIGHED less weight.

    low, high: keys int64 of which the second is the largest score's, and the first is below the one that is sought.
    """
    while high - low > 1:
        middle = (low + high) >> 1
        above = tl.zeros([], tl.int64)
        under = tl.full([], _NO_KEY, tl.int32)
        for first in range(0, count, N):
            at = first + tl.arange(0, N)
            key = key_of(tl.load(scores + at, mask=at < count, other=float("-inf")))
            over = (at < count) & (key > middle.to(tl.int32))
            weight = weights_of(tl.load(exponentials + at, mask=over, other=0.0)) if WEIGHED else over.to(tl.int64)
            above += tl.sum(weight, 0)
            under = tl.maximum(under, tl.max(tl.where((at < count) & (key <= middle.to(tl.int32)), key, _NO_KEY), 0))
        fewer = above.to(tl.float64) < most
        # No score lies between the middle and the largest that is not above it.
        high = tl.where(fewer, tl.maximum(under.to(tl.int64), low + 1), high)
        low = tl.where(fewer, low, middle)
    return high


@triton.jit
def around(scores, exponentials, count, key, N: tl.constexpr):
    """What lies at and above a key: scores above, their weight, scores that equal it and theirs, the next key below."""
    above = tl.zeros([], tl.int64)
    weight = tl.zeros([], tl.int64)
    equal = tl.zeros([], tl.int64)
    own = tl.zeros([], tl.int64)
    below = tl.full([], _NO_KEY, tl.int32)
    for first in range(0, count, N):
        at = first + tl.arange(0, N)
        there = at < count
        here = key_of(tl.load(scores + at, mask=there, other=float("-inf")))
        each = weights_of(tl.load(exponentials + at, mask=there, other=0.0))
        above += tl.sum((there & (here > key)).to(tl.int64), 0)
        weight += tl.sum(tl.where(there & (here > key), each, 0), 0)
        equal += tl.sum((there & (here == key)).to(tl.int64), 0)
        own += tl.sum(tl.where(there & (here == key), each, 0), 0)
        below = tl.maximum(below, tl.max(tl.where(there & (here < key), here, _NO_KEY), 0))
    return above, weight, equal, own, below


@triton.jit
def scores_at(row, ids, vocabulary, temperature):
    """The scores of ids; zeros of both signs are equal."""
    raw = loaded(row, ids, vocabulary)
    score = tl.div_rn(raw, tl.zeros(raw.shape, tl.float32) + temperature)
    return tl.where(score == 0.0, 0.0, score)


@triton.jit(do_not_specialize=["vocabulary", "base", "rows_at_once", "bits_stride"])
def cut_kernel(
    logits,
    draws,
    mask,
    filters,
    candidates,
    least_out,
    until_out,
    close_out,
    vocabulary,
    base,
    rows_at_once,
    stride,
    bits_stride,
    NEAR_SCORE: tl.constexpr,
    NEAR_PROBABILITY: tl.constexpr,
    BLOCK: tl.constexpr,
    N: tl.constexpr,
    GROUP: tl.constexpr,
):
    """A program for each draw; those whose slots are of another launch do nothing."""
    draw = tl.program_id(0).to(tl.int64)
    top_ks, top_ps, min_ps, slots = filters
    slot = tl.load(slots + draw)
    if (slot < 0) & (base == 0):
        tl.store(least_out + draw, float("-inf"))
        tl.store(until_out + draw, vocabulary)
        tl.store(close_out + draw, 0)
    if (slot >= base) & (slot < base + rows_at_once):
        temperature = tl.load(draws.temperatures + draw)
        top_k = tl.load(top_ks + draw)
        top_p = tl.load(top_ps + draw)
        min_p = tl.load(min_ps + draw)
        by_count = (top_k > 0) & (top_k < vocabulary)
        by_share = top_p < 1.0
        row = (logits + tl.load(draws.rows + draw).to(tl.int64) * stride, mask, draw, bits_stride)
        scores = candidates + (slot - base).to(tl.int64) * vocabulary
        exponentials = candidates + (rows_at_once + slot - base).to(tl.int64) * vocabulary
        index = tl.arange(0, BLOCK)

        # The largest score, the sum of all exponentials relative to it, and the maxima of groups.
        peak = tl.full([], float("-inf"), tl.float32)
        total = tl.zeros([], tl.float32)
        for first in range(0, vocabulary, BLOCK):
            score = scores_at(row, first + index, vocabulary, temperature)
            crest = tl.maximum(peak, tl.max(score, 0))
            floor = tl.where(crest == float("-inf"), 0.0, crest)
            total = total * tl.exp(peak - floor) + tl.sum(tl.exp(score - floor), 0)
            peak = crest
            if by_count:
                group = first // GROUP + tl.arange(0, BLOCK // GROUP)
                maxima = tl.max(tl.reshape(score, [BLOCK // GROUP, GROUP]), 1)
                tl.store(scores + group, maxima, mask=group * GROUP < vocabulary)
        high = key_of(peak).to(tl.int64)

        # No candidate is below the bound: see above. What lies below the cuts of top-k and min-p is looked at too, as
        # far as it is near.
        bound = tl.full([], float("-inf"), tl.float32)
        groups = tl.cdiv(vocabulary, GROUP)
        if by_count:
            if top_k <= groups:
                tl.debug_barrier()
                none = tl.full([], _NO_KEY, tl.int64)
                found = least_kept(scores, scores, groups, none, high, top_k.to(tl.float64), N, False)
                bound = score_of(found.to(tl.int32)) - 2.0 * NEAR_SCORE
        elif by_share:
            share = (1.0 - top_p) * total.to(tl.float64) / vocabulary
            bound = (peak.to(tl.float64) + tl.log(share) - _SLACK).to(tl.float32)
        else:
            # Where the cut itself is near 0, all that is below it is near.
            share = tl.maximum(min_p - 1.001 * NEAR_PROBABILITY * total.to(tl.float64), 1e-4 * min_p)
            bound = (peak.to(tl.float64) + tl.log(share) - _SLACK).to(tl.float32)

        # Groups were read by all before what they lie in is written to.
        tl.debug_barrier()
        count = tl.zeros([], tl.int32)
        low = high
        outside = tl.zeros([], tl.float32)
        for first in range(0, vocabulary, BLOCK):
            score = scores_at(row, first + index, vocabulary, temperature)
            chosen = (score >= bound) & (score > float("-inf"))
            outside += tl.sum(tl.where(chosen, 0.0, tl.exp(score - peak)), 0)
            some = tl.sum(chosen.to(tl.int32), 0)
            if some > 0:
                to = count + tl.cumsum(chosen.to(tl.int32), 0) - 1
                tl.store(scores + to, score, mask=chosen)
                low = tl.minimum(low, tl.min(tl.where(chosen, key_of(score), 0x7FFFFFFF), 0).to(tl.int64))
            count += some
        tl.debug_barrier()
        for first in range(0, count, N):
            at = first + tl.arange(0, N)
            far = tl.load(scores + at, mask=at < count, other=float("-inf")).to(tl.float64) - peak.to(tl.float64)
            tl.store(exponentials + at, tl.exp(far).to(tl.float32), mask=at < count)
        tl.debug_barrier()
        low -= 1

        # Top-k: all that equal the k-th stay.
        close = tl.full([], 0, tl.int32)
        cut = low + 1
        if by_count & (top_k < count):
            cut = least_kept(scores, exponentials, count, low, high, top_k.to(tl.float64), N, False)
        above, weight, equal, own, below = around(scores, exponentials, count, cut, N)
        kept, mass = above + equal, (weight + own).to(tl.float64) / _UNIT
        if by_count:
            gap = score_of(cut.to(tl.int32)) - score_of(below)
            close = ((kept == top_k) & (below > _NO_KEY) & (gap < NEAR_SCORE)).to(tl.int32)
        else:
            mass += outside.to(tl.float64)

        # Top-p: of the scores at its cut the first stay.
        until = vocabulary
        if by_share:
            cut = least_kept(scores, exponentials, count, cut - 1, high, top_p * mass * _UNIT, N, True)
            above, weight, equal, own, below = around(scores, exponentials, count, cut, N)
            before, each = weight.to(tl.float64) / _UNIT, (own // tl.maximum(equal, 1)).to(tl.float64) / _UNIT
            goal = top_p * mass
            stay = equal
            if each > 0.0:
                stay = tl.minimum(equal, tl.maximum(1, tl.ceil((goal - before) / each).to(tl.int64)))
            last = (before + (stay - 1).to(tl.float64) * each) / mass
            after = (before + stay.to(tl.float64) * each) / mass
            kept = above + stay
            close |= (tl.abs(top_p - last) < NEAR_PROBABILITY).to(tl.int32)
            close |= ((kept < vocabulary) & (tl.abs(after - top_p) < NEAR_PROBABILITY)).to(tl.int32)
            mass = before + stay.to(tl.float64) * each
            if stay < equal:
                passed = tl.zeros([], tl.int64)
                for first in range(0, vocabulary, BLOCK):
                    score = scores_at(row, first + index, vocabulary, temperature)
                    same = key_of(score) == cut
                    order = passed + tl.cumsum(same.to(tl.int64), 0)
                    found = tl.max(tl.where(same & (order == stay), first + index, -1), 0)
                    until = tl.where(found >= 0, found, until)
                    passed += tl.sum(same.to(tl.int64), 0)
        least = score_of(cut.to(tl.int32))

        if min_p > 0.0:
            # The first float32 that is not below the cut.
            true = peak.to(tl.float64) + tl.log(min_p)
            line_key = key_of(true.to(tl.float32)).to(tl.int64)
            line_key += (score_of(line_key.to(tl.int32)).to(tl.float64) < true).to(tl.int64)
            over = tl.full([], 0x7FFFFFFF, tl.int32)
            below = tl.full([], _NO_KEY, tl.int32)
            for first in range(0, count, N):
                at = first + tl.arange(0, N)
                key = key_of(tl.load(scores + at, mask=at < count, other=float("-inf")))
                there = (at < count) & (key >= cut)
                over = tl.minimum(over, tl.min(tl.where(there & (key >= line_key), key, 0x7FFFFFFF), 0))
                below = tl.maximum(below, tl.max(tl.where(there & (key < line_key), key, _NO_KEY), 0))
            far = score_of(over).to(tl.float64) - peak.to(tl.float64)
            close |= ((tl.exp(far) - min_p) / mass < NEAR_PROBABILITY).to(tl.int32)
            if below > _NO_KEY:
                far = score_of(below).to(tl.float64) - peak.to(tl.float64)
                close |= ((min_p - tl.exp(far)) / mass < NEAR_PROBABILITY).to(tl.int32)
            # Ids that are out already have no probability.
            close |= (((kept < vocabulary) | (below > _NO_KEY)) & (min_p / mass < NEAR_PROBABILITY)).to(tl.int32)
            if line_key > cut:
                least, until = score_of(line_key.to(tl.int32)), vocabulary
        tl.store(least_out + draw, least)
        tl.store(until_out + draw, until)
        tl.store(close_out + draw, close)


def cut(
    logits: torch.Tensor,
    draws: TokenDraws,
    bits: torch.Tensor | None,
    lines: torch.Tensor | None,
    filters: Filters,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The least score that each draw may have float32 [D], the last id of that score int32, and whether it is close.

    The third, int32, is 1 where rounding could have moved a cut. Scores are logits [R, V] by temperature, of the ids
    that bits and lines allow (see `sample.py`). Twin: `filtered_scores` of `executor/engine/step/sampler.py`.
    """
    vocabulary, device = logits.shape[1], logits.device
    at_once = max(1, min(filters.count, _MAX_BYTES // (8 * vocabulary)))
    candidates = torch.empty((2, at_once, vocabulary), device=device)
    least = torch.empty(draws.size, device=device)
    until, close = aligned(2, (draws.size,), torch.int32, device)
    for base in range(0, filters.count, at_once):
        cut_kernel[(draws.size,)](
            logits,
            draws,
            (bits, lines),
            (filters.top_k, filters.top_p, filters.min_p, filters.slots),
            candidates,
            least,
            until,
            close,
            vocabulary,
            base,
            at_once,
            logits.stride(0),
            0 if bits is None else bits.stride(0),
            NEAR_SCORE=NEAR_SCORE,
            NEAR_PROBABILITY=NEAR_PROBABILITY,
            BLOCK=_BLOCK,
            N=_CANDIDATES,
            GROUP=_GROUP,
            num_warps=16,
            **LAUNCH,
        )
    return least, until, close
