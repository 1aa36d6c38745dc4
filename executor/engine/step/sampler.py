"""Sampling tokens from logits: Gumbel-max with noise that is a pure function of key, position and token id.

Gumbel-max sampling is exact for the softmax (Gumbel, 1954; Maddison et al., 2014). Since the noise does not depend on
the batch, a row's tokens do not either. `sample` runs in torch; `KernelSampler` draws the same tokens by a kernel
compiled for this CPU, and `DeviceSampler` by kernels of a device, for which it never waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from qpdsl.executor.engine.batch.staging import Numbers, Parcel, Staging
from qpdsl.executor.kernels.data.token_draws import Drawn, Filters, TokenDraws
from qpdsl.executor.kernels.plain.philox import GUMBEL_MAX, GUMBEL_MIN, gumbel, philox4x32
from qpdsl.executor.requests.request import SamplingParams

# A near tie: a draw that rounding could have decided (see the language reference, "What a plan may change"). The two
# best scores are nearer than the gap, or a probability is nearer to a cut than the other bound.
NEAR_TIE_GAP = 1e-4
NEAR_CUT_PROBABILITY = 1e-6


class SampledTokens(NamedTuple):
    """For each row the token int64 [B], its log-probability at temperature 1 float32 [B], near tie or not bool [B].

    `confidences` float64 [B]: margins and entropies where a draw asks for them, None where none does. `figures` float64
    [B, 3]: `DrawFigures`, None where no draw asks for them.
    """

    tokens: torch.Tensor
    logprobs: torch.Tensor
    near_ties: torch.Tensor
    confidences: torch.Tensor | None = None
    figures: torch.Tensor | None = None


# As `sample`.
Sampler = Callable[[torch.Tensor, list[SamplingParams], list[int], list[int]], SampledTokens]
# Logits float32 [B, V], temperature float32 [B], 0 where the largest logit wins, keys and positions int64 [B]: to
# tokens int64, log-probabilities at temperature 1 and gaps to the runner-up float32 [B].
Kernel = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor, torch.Tensor]
]
# Logits [R, V], draws of D tokens, the bits and lines of their masks and their filters, or None: see
# `kernels/triton/sample.py`.
DeviceKernel = Callable[[torch.Tensor, TokenDraws, torch.Tensor | None, torch.Tensor | None, Filters | None], Drawn]


def sample(logits: torch.Tensor, params: list[SamplingParams], keys: list[int], positions: list[int]) -> SampledTokens:
    """Draws one token for each row of `logits` (float32 [B, V]).

    `keys`: 64-bit noise keys; `positions`: how many tokens were drawn before under each row's key.
    """
    scores, near = drawn_scores(logits, params, keys, positions)
    tokens, gap = _best(scores)
    near |= gap < NEAR_TIE_GAP
    logprobs = logits.gather(1, tokens[:, None])[:, 0] - logits.logsumexp(dim=-1)
    return SampledTokens(tokens, logprobs, near)


def drawn_scores(
    logits: torch.Tensor, params: list[SamplingParams], keys: list[int], positions: list[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The scores [B, V] of which `sample` takes the largest: filtered logits with their noise.

    The second result, bool [B]: see `filtered_scores`.
    """
    scores = logits
    if not all(p.greedy for p in params):
        temperature = torch.tensor([p.temperature or 1.0 for p in params], dtype=torch.float32, device=logits.device)
        scores = logits / temperature[:, None]
    near = torch.zeros(len(params), dtype=torch.bool, device=logits.device)
    filtered = [row for row, p in enumerate(params) if p.filtered and not p.greedy]
    if filtered:
        scores = scores.clone()
        bounds = (torch.from_numpy(bound) for bound in cuts([params[row] for row in filtered], logits.shape[-1]))
        scores[filtered], near[filtered] = filtered_scores(scores[filtered], *bounds)
    noisy = [row for row, p in enumerate(params) if not p.greedy]
    if len(noisy) == len(params):
        scores = perturbed(scores, keys, positions)
    elif noisy:
        rows = torch.tensor(noisy, device=logits.device)
        scores = scores.clone()
        scores[rows] = perturbed(scores[rows], [keys[row] for row in noisy], [positions[row] for row in noisy])
    return scores, near


class KernelSampler:
    """Samples by one compiled kernel; rows with filters are cut in torch before it."""

    def __init__(self, staging: Staging, kernel: Kernel) -> None:
        self._staging = staging
        self._kernel = kernel

    def __call__(
        self, logits: torch.Tensor, params: list[SamplingParams], keys: list[int], positions: list[int]
    ) -> SampledTokens:
        """See `sample`."""
        rows = [row for row, p in enumerate(params) if p.filtered and not p.greedy]
        arrays = noise_arrays(params, keys, positions)
        if rows:
            arrays += [np.array(rows, dtype=np.int64), *cuts([params[row] for row in rows], logits.shape[-1])]
        temperature, key, position, *cut = self._staging.send(arrays)
        if not cut:
            tokens, logprobs, gaps = self._kernel(logits, temperature, key, position)
            return SampledTokens(tokens, logprobs, gaps < NEAR_TIE_GAP)
        index, *bounds = cut
        raw = logits.index_select(0, index)
        kept, near_cut = filtered_scores(raw / temperature.index_select(0, index)[:, None], *bounds)
        scores = logits.index_copy(0, index, kept)
        tokens, logprobs, gaps = self._kernel(scores, temperature.index_fill(0, index, 1.0), key, position)
        near = gaps < NEAR_TIE_GAP
        near.index_copy_(0, index, near.index_select(0, index) | near_cut)
        # In double, so that the result does not depend on how threads split the sum.
        wide = raw.double()
        chosen = wide.gather(1, tokens.index_select(0, index)[:, None])[:, 0]
        logprobs.index_copy_(0, index, (chosen - wide.logsumexp(dim=-1)).float())
        return SampledTokens(tokens, logprobs, near)


class DeviceSampler:
    """Samples by kernels on the logits' device, which read masks and find the cuts of filters there."""

    def __init__(self, staging: Staging, kernel: DeviceKernel) -> None:
        self._staging = staging
        self._kernel = kernel

    def __call__(
        self, logits: torch.Tensor, params: list[SamplingParams], keys: list[int], positions: list[int]
    ) -> SampledTokens:
        """See `sample`."""
        parcel = Parcel(self._staging)
        drawn = self.planned(params, keys, positions, range(len(params)), logits.shape[-1], parcel)
        parcel.send()
        return drawn(logits, None)

    def planned(
        self,
        params: list[SamplingParams],
        keys: list[int],
        positions: list[int],
        rows: Sequence[int],
        vocabulary: int,
        parcel: Parcel,
    ) -> Callable[[torch.Tensor, tuple[torch.Tensor, torch.Tensor] | None], SampledTokens]:
        """What draws once the parcel was sent: from logits [R, V], of which a draw reads the one in `rows`.

        Its second argument are the bits and lines of the masks, as in `kernels/layers.py`; None without any.
        """
        top_k, top_p, min_p = cuts(params, vocabulary)
        cut = np.array([not p.greedy for p in params]) & ((top_k < vocabulary) | (top_p < 1) | (min_p > 0))
        count = int(cut.sum())
        slots = np.where(cut, cut.cumsum() - 1, -1)
        arrays = [np.array(rows, dtype=np.int32), *noise_arrays(params, keys, positions)]
        if count:
            arrays += [np.where(top_k < vocabulary, top_k, 0).astype(np.int32), top_p, min_p, slots.astype(np.int32)]
        sent = parcel.add(arrays)

        def drawn(logits: torch.Tensor, mask: tuple[torch.Tensor, torch.Tensor] | None) -> SampledTokens:
            own, temperatures, key, position, *bounds = sent()
            filters = None
            if bounds:
                k, p, least, slot = bounds
                filters = Filters(k, p, least, slot, count)
            bits, lines = mask or (None, None)
            tokens, logprobs, gaps = self._kernel(
                logits, TokenDraws(own, temperatures, key, position), bits, lines, filters
            )
            return SampledTokens(tokens, logprobs, gaps < NEAR_TIE_GAP)

        return drawn


def noise_arrays(params: Iterable[SamplingParams], keys: list[int], positions: list[int]) -> list[Numbers]:
    """Of draws the temperature float32, 0 where the largest logit wins, the key and the position int64."""
    temperatures = np.array([0.0 if p.greedy else p.temperature for p in params], dtype=np.float32)
    return [temperatures, np.array(keys, dtype=np.uint64).view(np.int64), np.array(positions, dtype=np.int64)]


def cuts(params: list[SamplingParams], vocabulary: int) -> tuple[Numbers, Numbers, Numbers]:
    """Top-k int64, top-p and min-p float64 [F] of rows with filters; a filter that is off cuts nothing."""
    top_k = np.array([min(p.top_k or vocabulary, vocabulary) for p in params], dtype=np.int64)
    top_p = np.array([2.0 if p.top_p in (None, 1) else p.top_p for p in params], dtype=np.float64)
    return top_k, top_p, np.array([p.min_p or 0.0 for p in params], dtype=np.float64)


def filtered_scores(
    scores: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Applies top-k, top-p and min-p to rows [F, V], each to what the one before left; ids that are cut become −inf.

    The bounds are those of `cuts`. The second result, bool [F], is true where a probability lies so close to a cut that
    rounding could have moved it.
    """
    vocabulary = scores.shape[-1]
    top_k, top_p, min_p = top_k[:, None], top_p[:, None], min_p[:, None]
    ordered, order = scores.sort(dim=-1, descending=True, stable=True)

    # Equal scores at the top-k cut all stay, so that the kept set does not depend on the order of a sort.
    last, next_ = ordered.gather(1, top_k - 1), ordered.gather(1, top_k.clamp(max=vocabulary - 1))
    near = (top_k < vocabulary) & (last != next_) & (last - next_ < NEAR_TIE_GAP)
    ordered = ordered.masked_fill(ordered < last, float("-inf"))

    probabilities = ordered.double().softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    near |= ((before - top_p).abs() < NEAR_CUT_PROBABILITY).any(dim=-1, keepdim=True)
    ordered = ordered.masked_fill(before >= top_p, float("-inf"))

    probabilities = ordered.double().softmax(dim=-1)
    cut = min_p * probabilities[:, :1]
    near |= ((probabilities - cut).abs() < NEAR_CUT_PROBABILITY).any(dim=-1, keepdim=True) & (min_p > 0)
    ordered = ordered.masked_fill(probabilities < cut, float("-inf"))
    return torch.empty_like(scores).scatter_(1, order, ordered), near[:, 0]


def _best(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The id of each row's largest score, the first of equal ones, and how far the next is behind: int64, float32 [B].

    `scores` is changed meanwhile, and restored. On a CPU numpy's argmax and two maxima take a fifth of the time of
    torch's argmax and `topk`.
    """
    if scores.is_cuda or scores.shape[-1] < 2:
        top = scores.topk(min(2, scores.shape[-1]), dim=-1).values
        gap = top[:, 0] - top[:, 1] if top.shape[-1] > 1 else torch.full_like(top[:, 0], float("inf"))
        return scores.argmax(dim=-1), gap
    tokens = torch.from_numpy(scores.numpy().argmax(axis=-1))
    first = scores.gather(1, tokens[:, None])
    scores.scatter_(1, tokens[:, None], float("-inf"))
    gap = first[:, 0] - scores.amax(dim=-1)
    scores.scatter_(1, tokens[:, None], first)
    return tokens, gap


def perturbed(
    scores: torch.Tensor, keys: list[int], positions: list[int], lead: torch.Tensor | None = None
) -> torch.Tensor:
    """Adds Gumbel noise to the ids that can win with it; those too far below the row's maximum become −inf.

    With a `lead` [B], noise comes to all ids that can end nearer than that to the winner.
    """
    batch, vocabulary = scores.shape
    padding = -vocabulary % 4
    if padding:
        scores = torch.nn.functional.pad(scores, (0, padding), value=float("-inf"))
    threshold = scores.amax(dim=-1, keepdim=True) - (GUMBEL_MAX - GUMBEL_MIN)
    if lead is not None:
        threshold = threshold - lead[:, None]
    blocks = scores.view(batch, -1, 4)
    rows, places = ((blocks >= threshold[:, :, None]).any(dim=-1)).nonzero(as_tuple=True)
    key = torch.tensor([k - (1 << 64) if k >> 63 else k for k in keys], device=scores.device)
    position = torch.tensor(positions, device=scores.device)
    noise = gumbel(philox4x32(key[rows], places, position[rows]))
    noisy = torch.full_like(blocks, float("-inf"))
    noisy[rows, places] = (blocks[rows, places].double() + noise).to(scores.dtype)
    return noisy.view(batch, -1)[:, :vocabulary]
