"""Draws from the hidden states of an early exit, and whether their tokens stand."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from qpdsl.executor.engine.step.draws import Draw, Masks
from qpdsl.executor.engine.step.readout import Readout
from qpdsl.executor.engine.step.sampler import NEAR_CUT_PROBABILITY, NEAR_TIE_GAP, SampledTokens, perturbed
from qpdsl.executor.requests.early_exit import EarlyExit
from qpdsl.executor.requests.request import Bits


class Leaving(NamedTuple):
    """What a draw comes to at its exit.

    stands:   whether the token is the sample's; if not, the last layer draws
    near_tie: rounding could have decided the token, if it stands, or whether it does
    margin:   by how much the two largest probabilities differ
    best:     int32, the bits of the ids among which the last layer draws; None for all that may come
    """

    token: int
    logprob: float
    near_tie: bool
    stands: bool
    margin: float = 0.0
    best: Bits | None = None


def leave(readout: Readout, hidden: torch.Tensor, draws: list[Draw], masks: Masks | None) -> list[Leaving]:
    """Draws from hidden states [N, d] of exits; each draw has one. What comes of a draw depends on that draw alone."""
    results: dict[int, Leaving] = {}
    direct = [index for index, draw in enumerate(draws) if not _needs_logits(draw)]
    if direct:
        own = [draws[index] for index in direct]
        drawn = readout.with_margins(hidden, own, masks)
        if drawn is None:
            direct = []
        else:
            sampled, margins = drawn
            results |= zip(direct, _settled(own, sampled, margins.tolist(), {}, []), strict=True)
    rest = sorted(set(range(len(draws))) - set(direct))
    if rest:
        results |= zip(rest, _by_logits(readout, hidden, [draws[index] for index in rest], masks), strict=True)
    return [results[index] for index in range(len(draws))]


def refined(draws: list[Draw], leavings: list[Leaving], masks: Masks | None) -> tuple[list[Draw], Masks | None]:
    """The draws for the last layer in the place of those that do not stand, and the masks that they read."""
    best = [leaving.best for leaving in leavings if leaving.best is not None]
    if not best:
        return draws, masks
    rows = np.stack(best)
    counts = np.bitwise_count(rows.view(np.uint32)).sum(axis=1, dtype=np.int64)
    first = 0
    if masks is not None:
        first, width = len(masks.bits), max(rows.shape[1], masks.bits.shape[1])
        rows = np.concatenate([np.pad(own, ((0, 0), (0, width - own.shape[1]))) for own in (masks.bits, rows)])
        counts = np.concatenate((masks.counts, counts))
    again: list[Draw] = []
    for draw, leaving in zip(draws, leavings, strict=True):
        if leaving.best is not None:
            draw, first = draw._replace(allowed=first, sparse=True), first + 1
        again.append(draw)
    return again, Masks(rows, counts, {} if masks is None else masks.first)


def _needs_logits(draw: Draw) -> bool:
    """Whether the logits of all ids are looked at: filters sort them, a certificate and the best few compare them.

    Penalties change them.
    """
    assert draw.exit is not None
    if draw.exit.rerank is not None or draw.exit.certify is not None or draw.adjustment is not None:
        return True
    return draw.params.filtered and not draw.params.greedy


def _by_logits(readout: Readout, hidden: torch.Tensor, draws: list[Draw], masks: Masks | None) -> list[Leaving]:
    logits = readout.masked_logits(hidden, draws, masks)
    sampled = readout.drawn(logits, draws)
    # A sum alone is split among threads, where one of several has its own thread: it would have other bits.
    wide = logits.double()
    totals = wide.expand(max(2, len(wide)), -1).logsumexp(dim=-1)[: len(wide)]
    top = wide.topk(min(2, wide.shape[-1]), dim=-1).values
    probabilities = (top - totals[:, None]).exp()
    margins = probabilities[:, 0] - (probabilities[:, 1] if top.shape[-1] > 1 else 0.0)
    certified = [index for index, draw in enumerate(draws) if _exit(draw).certify is not None]
    leads = _leads(logits[certified], [draws[index] for index in certified], sampled.tokens[certified])
    best: list[Bits | None] = [
        None if (count := _exit(draw).rerank) is None else _best(logits[index], count)
        for index, draw in enumerate(draws)
    ]
    return _settled(draws, sampled, margins.tolist(), dict(zip(certified, leads, strict=True)), best)


def _exit(draw: Draw) -> EarlyExit:
    assert draw.exit is not None
    return draw.exit


def _settled(
    draws: list[Draw], sampled: SampledTokens, margins: list[float], leads: dict[int, float], best: list[Bits | None]
) -> list[Leaving]:
    """`leads`, by the number of the draw: by how much more than it must its token leads, where that is asked for."""
    leavings: list[Leaving] = []
    rows = zip(sampled.tokens.tolist(), sampled.logprobs.tolist(), sampled.near_ties.tolist(), strict=True)
    for index, (draw, (token, logprob, tie)) in enumerate(zip(draws, rows, strict=True)):
        surplus, lead = margins[index] - _exit(draw).margin, leads.get(index, float("inf"))
        stands = surplus >= 0 and lead > 0
        near = abs(surplus) < NEAR_CUT_PROBABILITY or abs(lead) < NEAR_TIE_GAP
        leavings.append(
            Leaving(
                *(token, logprob, near or (stands and tie), stands, margins[index]),
                None if stands or not best else best[index],
            )
        )
    return leavings


def _leads(logits: torch.Tensor, draws: list[Draw], tokens: torch.Tensor) -> list[float]:
    """By how much the drawn tokens lead in scores with their noise, less what a certificate asks.

    logits float32 [B, V]; tokens int64 [B].
    """
    if not draws:
        return []
    noisy = torch.tensor([not draw.params.greedy for draw in draws], device=logits.device)
    temperature = torch.tensor(
        [1.0 if draw.params.greedy else draw.params.temperature for draw in draws], device=logits.device
    )
    bounds = torch.tensor([2 * (_exit(draw).certify or 0.0) for draw in draws], device=logits.device) / temperature
    scores = logits / temperature[:, None]
    if bool(noisy.any()):
        own = [draw for draw in draws if not draw.params.greedy]
        keys, positions = [draw.key for draw in own], [draw.position for draw in own]
        scores[noisy] = perturbed(scores[noisy], keys, positions, bounds[noisy])
    drawn = scores.gather(1, tokens[:, None])[:, 0]
    scores.scatter_(1, tokens[:, None], float("-inf"))
    leads: list[float] = (drawn - scores.amax(dim=-1) - bounds).tolist()
    return leads


def _best(logits: torch.Tensor, count: int) -> Bits:
    """The bits, int32, of the ids of the `count` largest logits [V] that are finite; of equal ones, the first."""
    values = logits.cpu().numpy()
    count = min(count, len(values))
    least = np.partition(values, len(values) - count)[len(values) - count]
    chosen = values > least
    if least > -np.inf:
        chosen[np.flatnonzero(values == least)[: count - int(chosen.sum())]] = True
    bits = np.zeros(-(-len(values) // 32) * 32, dtype=np.bool_)
    bits[: len(values)] = chosen
    return np.packbits(bits, bitorder="little").view(np.int32)
