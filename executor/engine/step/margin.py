"""How near a tie a draw was: its perturbed logits, computed again from the logits at its place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from qpdsl.executor.engine.step.adjustments import adjusted, adjustment_of, columns_of
from qpdsl.executor.engine.step.sampler import NEAR_TIE_GAP, drawn_scores
from qpdsl.executor.kernels.plain.head_twins import allowed
from qpdsl.executor.requests.request import GenerateRequest


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
    raw = torch.tensor([logits], dtype=torch.float32)
    if (adjustment := adjustment_of(request, before)) is not None:
        raw = adjusted(raw, [torch.from_numpy(column) for column in columns_of([adjustment])])
    if request.mask is not None:
        mask = request.mask()
        for token in before:
            mask.push(token)
        bits = np.zeros((1, -(-len(logits) // 32)), dtype=np.int32)
        mask.fill([mask], bits)
        lines = torch.zeros(1, dtype=torch.int64)
        raw = raw.masked_fill(~allowed(torch.from_numpy(bits), lines, 0, len(logits)), -math.inf)
    scores, near_cut = drawn_scores(raw, [request.sampling], [key], [request.drawn + len(before)])
    best, ids = scores[0].topk(min(2, len(logits)))
    token = int(scores[0].argmax())
    others = [id for id, value in zip(ids.tolist(), best.tolist(), strict=True) if id != token and value > -math.inf]
    gap = float(best[0] - scores[0, others[0]]) if others else math.inf
    return Margin(token, others[0] if others else None, gap, bool(near_cut[0]) or gap < NEAR_TIE_GAP)
