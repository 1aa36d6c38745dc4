"""What a draw was, from the logits at its place that are read again: how near a tie, and how probable its token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from qpdsl.executor.engine.step.adjustments import adjusted, adjustment_of, columns_of
from qpdsl.executor.engine.step.sampler import NEAR_TIE_GAP, cuts, drawn_scores, filtered_scores
from qpdsl.executor.kernels.plain.head_twins import allowed
from qpdsl.executor.requests.drawing import Logits
from qpdsl.executor.requests.request import GenerateRequest, Mask


@dataclass(frozen=True, slots=True)
class Margin:
    """`token` won the draw, and the best other one, `second`, is `gap` behind it in perturbed logits.

    Without another one that could come `second` is None and the gap infinite. `near_tie`: rounding could have decided
    the draw, by the gap or at the cut of a filter.
    """

    token: int
    second: int | None
    gap: float
    near_tie: bool


def is_plain(request: GenerateRequest) -> bool:
    """Whether a request draws each token from the logits of the whole model, as its noise says."""
    return request.exit is None and request.confidence is None and request.rank is None


def margin_of(logits: Sequence[float], request: GenerateRequest, key: int, before: Sequence[int]) -> Margin:
    """The margin of the draw under a noise key of a plain request behind `before`, tokens that it drew.

    `logits` are the model's, of all ids, behind the prompt and these tokens.
    """
    mask = None if request.mask is None else request.mask()
    if mask is not None:
        _show(mask, before)
    raw = _open_logits(torch.tensor([logits], dtype=torch.float32), request, before, mask)
    scores, near_cut = drawn_scores(raw, [request.sampling], [key], [request.drawn + len(before)])
    best, ids = scores[0].topk(min(2, len(logits)))
    token = int(scores[0].argmax())
    others = [id for id, value in zip(ids.tolist(), best.tolist(), strict=True) if id != token and value > -math.inf]
    gap = float(best[0] - scores[0, others[0]]) if others else math.inf
    return Margin(token, others[0] if others else None, gap, bool(near_cut[0]) or gap < NEAR_TIE_GAP)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural log-probabilities of a sample's tokens, one each.

    `model` are those under the model at temperature 1, whatever a mask forbade; `drawn` those under what the tokens
    were drawn from: after biases, penalties, the mask, the temperature and the filters. Greedily drawn ones have 0.
    """

    model: tuple[float, ...]
    drawn: tuple[float, ...]


def logprobs_of(
    rows: Sequence[Logits], request: GenerateRequest, before: Sequence[int], drawn: Sequence[int]
) -> TokenLogprobs:
    """Of the tokens that a plain request drew behind `before`; `rows` are the model's logits [V] at each of them."""
    mask = None if request.mask is None else request.mask()
    if mask is not None:
        _show(mask, before)
    logits = torch.from_numpy(np.stack(rows))
    ids = torch.tensor(drawn)[:, None]
    model = _logprobs(logits, ids)
    sampling, tokens = request.sampling, list(before)
    if sampling.greedy:
        return TokenLogprobs(model, (0.0,) * len(drawn))
    if mask is None and not sampling.processors.adjusts and sampling.temperature == 1 and not sampling.filtered:
        return TokenLogprobs(model, model)
    opened: list[torch.Tensor] = []
    for row, token in zip(logits, drawn, strict=True):
        if mask is not None and opened:
            mask.push(tokens[-1])
        opened.append(_open_logits(row[None].clone(), request, tokens, mask))
        tokens.append(token)
    scores = torch.cat(opened) / sampling.temperature
    if sampling.filtered:
        params = [sampling] * len(drawn)
        scores, _ = filtered_scores(scores, *(torch.from_numpy(bound) for bound in cuts(params, scores.shape[-1])))
    return TokenLogprobs(model, _logprobs(scores, ids))


def _logprobs(logits: torch.Tensor, ids: torch.Tensor) -> tuple[float, ...]:
    """As a `LogProbRequest` reads them, to the bit."""
    wide = logits.double()
    # A sum alone is split among threads, where one of several has its own thread: it would have other bits.
    totals = wide.expand(max(2, len(wide)), -1).logsumexp(dim=-1)[: len(wide)]
    return tuple((wide.gather(1, ids)[:, 0] - totals).tolist())


def _open_logits(raw: torch.Tensor, request: GenerateRequest, before: Sequence[int], mask: Mask | None) -> torch.Tensor:
    """Logits [1, V] with a request's biases and penalties, -inf where its mask, which saw `before`, forbids an id."""
    if (adjustment := adjustment_of(request, before)) is not None:
        raw = adjusted(raw, [torch.from_numpy(column) for column in columns_of([adjustment])])
    if mask is None:
        return raw
    bits = np.zeros((1, -(-raw.shape[-1] // 32)), dtype=np.int32)
    mask.fill([mask], bits)
    lines = torch.zeros(1, dtype=torch.int64)
    return raw.masked_fill(~allowed(torch.from_numpy(bits), lines, 0, raw.shape[-1]), -math.inf)


def _show(mask: Mask, tokens: Sequence[int]) -> None:
    for token in tokens:
        mask.push(token)
