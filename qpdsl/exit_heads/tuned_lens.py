"""Fitting a tuned lens (Belrose et al., 2023): h + W·h + b after a layer, for norm and head to say what the model says.

Least squares come first: W and b that take h to the residual after the last layer, drawn to the identity (ridge). From
there, or from the identity where that is better, AdamW lowers KL(full ‖ exit). The distribution of the full model is
its likeliest ids, and all others as one class; of the exit's, the sum over all ids is estimated from the likeliest ids
of the batch and a sample of the rest. So a step does not depend on the size of the vocabulary.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from qpdsl.exit_heads.text_states import FrozenHead, States

_STEPS, _ROWS, _RATE, _DECAY = 600, 256, 1e-3, 0.01
# How strongly least squares are drawn to the identity: all are tried.
_RIDGES = (1e-3, 1e-2, 1e-1, 1.0)
# Ids drawn to stand for those that are likely nowhere in a batch.
_SAMPLED = 1024
# Places that decide between heads, and how often in a fit these are asked.
_CHOOSING, _CHECKS = 1024, 10
# A lens takes another's place where it is better by so many nats; below lies how sums are rounded.
_GAIN = 1e-4
_TINY = 1e-6


@dataclass(frozen=True, slots=True)
class Lens:
    """`weight` float32 [d, d] and `bias` float32 [d]; zeros are the identity."""

    weight: torch.Tensor
    bias: torch.Tensor

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + hidden @ self.weight.T + self.bias


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Ids that a loss looks at: the likeliest of a batch, then a sample of the others, each for `weight` of them."""

    ids: torch.Tensor
    likely: int
    weight: float

    @classmethod
    def of(cls, likeliest: torch.Tensor, vocabulary: int, draw: torch.Generator) -> _Candidates:
        likely = torch.unique(likeliest)
        others = torch.ones(vocabulary, dtype=torch.bool, device=likely.device)
        others[likely] = False
        rest = others.nonzero()[:, 0]
        count = min(_SAMPLED, len(rest))
        chosen = rest[torch.randperm(len(rest), generator=draw)[:count].to(rest.device)]
        return cls(torch.cat((likely, chosen)), len(likely), len(rest) / count if count else 1.0)


def fit_lens(
    head: FrozenHead,
    layer: int,
    fitting: States,
    choosing: States,
    seed: int,
    seconds: float,
    tell: Callable[[float], None],
) -> Lens:
    """A lens for the residual after `layer` layers, of those tried the best on `choosing`.

    The last steps are left out where `seconds` are over. `tell` is given the share of the steps that is done.
    """
    end = time.monotonic() + seconds
    draw = torch.Generator().manual_seed(seed)
    judge = _Judge(head, layer, choosing, draw)
    width, device = head.width, fitting.last.device
    identity = Lens(torch.zeros(width, width, device=device), torch.zeros(width, device=device))
    found = [identity, *_least_squares(fitting.after[layer], fitting.last)]
    best, loss = _best(judge, found)
    inputs, outputs = _scale(fitting.after[layer]), _scale(fitting.last)
    # Steps of one size suit all numbers of a lens between inputs and outputs of scale 1.
    matrix = (best.weight * inputs[None, :] / outputs[:, None]).requires_grad_()
    shift = (best.bias / outputs).requires_grad_()

    def lens() -> Lens:
        return Lens(matrix * outputs[:, None] / inputs[None, :], shift * outputs)

    optimizer = torch.optim.AdamW([matrix, shift], lr=_RATE, weight_decay=_DECAY)
    for step in range(_STEPS):
        # Up for a tenth of the steps, then down to nothing.
        rate = _RATE * min(1.0, 10 * (step + 1) / _STEPS) * (0.5 + 0.5 * math.cos(math.pi * step / _STEPS))
        optimizer.param_groups[0]["lr"] = rate
        rows = torch.randint(len(fitting), (_ROWS,), generator=draw).to(device)
        likeliest, logprobs = fitting.ids[rows], fitting.logprobs[rows]
        candidates = _Candidates.of(likeliest, head.vocabulary, draw)
        optimizer.zero_grad()
        hidden = lens()(fitting.after[layer][rows])
        mean = _divergence(head, hidden, likeliest, logprobs, candidates, head.rows(candidates.ids))
        torch.autograd.backward(mean)
        optimizer.step()
        over = time.monotonic() >= end
        if (step + 1) % (_STEPS // _CHECKS) == 0 or over:
            with torch.no_grad():
                own = lens()
                now = judge(own)
            if now < loss - _GAIN:
                best, loss = own, now
            tell((step + 1) / _STEPS)
        if over:
            break
    return best


class _Judge:
    """The loss of lenses over the same places and the same candidates."""

    def __init__(self, head: FrozenHead, layer: int, states: States, draw: torch.Generator) -> None:
        self._head = head
        self._hidden = states.after[layer][:_CHOOSING]
        self._likeliest, self._logprobs = states.ids[:_CHOOSING], states.logprobs[:_CHOOSING]
        self._candidates = _Candidates.of(self._likeliest, head.vocabulary, draw)
        self._rows = head.rows(self._candidates.ids)

    @torch.no_grad()
    def __call__(self, lens: Lens) -> float:
        parts = (lens(self._hidden), self._likeliest, self._logprobs, self._candidates, self._rows)
        loss = float(_divergence(self._head, *parts))
        return loss if math.isfinite(loss) else math.inf


def _best(judge: _Judge, lenses: list[Lens]) -> tuple[Lens, float]:
    best, loss = lenses[0], judge(lenses[0])
    for lens in lenses[1:]:
        if (own := judge(lens)) < loss - _GAIN:
            best, loss = lens, own
    return best, loss


def _divergence(
    head: FrozenHead,
    hidden: torch.Tensor,
    likeliest: torch.Tensor,
    logprobs: torch.Tensor,
    candidates: _Candidates,
    rows: tuple[torch.Tensor, torch.Tensor | None],
) -> torch.Tensor:
    """The mean of KL(full ‖ exit) over the likeliest ids of each row and the rest as one class."""
    logits = head.logits_by(head.normed(hidden), rows)
    weights = torch.zeros_like(logits[0])
    weights[candidates.likely :] = math.log(candidates.weight)
    total = (logits + weights).logsumexp(dim=1, keepdim=True)
    own = logits.gather(1, torch.searchsorted(candidates.ids[: candidates.likely], likeliest)) - total
    known = (logprobs.exp() * (logprobs - own)).sum(dim=1)
    rest = (1 - logprobs.exp().sum(dim=1)).clamp(_TINY, 1.0)
    own_rest = (1 - own.exp().sum(dim=1)).clamp_min(_TINY)
    return (known + rest * (rest.log() - own_rest.log())).mean()


@torch.no_grad()
def _least_squares(hidden: torch.Tensor, last: torch.Tensor) -> list[Lens]:
    """Lenses from `hidden` to `last`, both float32 [N, d], over rows of scale 1: a norm takes their scale away."""
    scale = last.double().square().mean(dim=1, keepdim=True).sqrt().clamp_min(_TINY)
    columns = torch.cat((_scale(hidden), torch.ones(1, device=hidden.device))).double()
    wide = torch.cat((hidden.double(), torch.ones(len(hidden), 1, dtype=torch.double, device=hidden.device)), dim=1)
    inputs = wide / columns / scale
    square, target = inputs.T @ inputs, inputs.T @ ((last - hidden).double() / scale)
    mean = square.diagonal().mean()
    lenses = []
    for ridge in _RIDGES:
        solved = torch.linalg.solve(square + ridge * mean * torch.eye(len(square), device=hidden.device), target)
        both = (solved / columns[:, None]).T.float()
        if bool(both.isfinite().all()):
            lenses.append(Lens(both[:, :-1].contiguous(), both[:, -1].contiguous()))
    return lenses


def _scale(states: torch.Tensor) -> torch.Tensor:
    """The root of the mean square of each column, float32 [d], of [N, d]."""
    return states.square().mean(dim=0).sqrt().clamp_min(_TINY)
