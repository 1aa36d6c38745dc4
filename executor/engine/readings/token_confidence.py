"""How the distribution of a draw looks: what a model's confidence in a token is measured by."""

from __future__ import annotations

import torch

from qpdsl.executor.requests.draw_figures import LIKELIEST


def confidences_of(logits: torch.Tensor, by_margin: torch.Tensor) -> torch.Tensor:
    """The margin, or 1 - H / ln(ids), float64 [B] of masked `logits` [B, V], where ids that may not come are -inf."""
    # A sum alone is split among threads, where one of several has its own thread: it would have other bits.
    wide = logits.double().expand(max(2, len(logits)), -1)
    probabilities = wide.softmax(dim=-1)
    top = probabilities.topk(min(2, wide.shape[-1]), dim=-1).values
    margins = top[:, 0] - top[:, 1] if top.shape[-1] > 1 else top[:, 0]
    entropies = torch.special.entr(probabilities).sum(dim=-1)
    most = wide.isfinite().sum(dim=-1).clamp(min=2).double().log()
    count = len(logits)
    return torch.where(by_margin, margins[:count], 1 - entropies[:count] / most[:count])


def figures_of(logits: torch.Tensor) -> torch.Tensor:
    """`DrawFigures` float64 [B, 3] of masked `logits` [B, V], in which ids that may not come are -inf."""
    # A sum alone is split among threads, where one of several has its own thread: it would have other bits.
    wide = logits.double().expand(max(2, len(logits)), -1)
    logprobs = wide.log_softmax(dim=-1)
    allowed = logprobs.isfinite()
    count = allowed.sum(dim=-1)
    likeliest = logprobs.topk(min(LIKELIEST, logprobs.shape[-1]), dim=-1).values
    confidence = -_finite_mean(likeliest)
    certainty = -_finite_mean(logprobs) - count.double().log()
    entropy = torch.special.entr(logprobs.exp()).sum(dim=-1)
    # No figure is -0.0.
    return torch.stack((entropy, confidence, certainty), dim=1)[: len(logits)] + 0.0


def _finite_mean(values: torch.Tensor) -> torch.Tensor:
    """The mean of the finite values of each row, float64 [B]; each row has one."""
    finite = values.isfinite()
    return values.masked_fill(~finite, 0.0).sum(dim=-1) / finite.sum(dim=-1)
