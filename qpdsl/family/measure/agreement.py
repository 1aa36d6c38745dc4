"""How far a cheaper predictor agrees with the generator: the mini model, and the generator's own middle layer.

All over texts that the generator wrote greedily, at every position where it chose a token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from qpdsl.family.training.batches import Batch, completion_rows, pad_rows
from qpdsl.family.training.generator import MIDDLE_LAYER
from qpdsl.family.training.loop import hidden_after

EDGES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99)
_ROWS = 50

Predictor = Callable[[torch.Tensor], torch.Tensor]
"""From ids [rows, width] to logits [rows, width, vocabulary]."""


@dataclass(frozen=True)
class Band:
    """Positions whose sureness lies in [low, high): their share of all, and how often both choose the same token."""

    low: float
    high: float
    share: float
    agree: float


@dataclass(frozen=True)
class Agreement:
    """`same`: the share of positions where both choose the same token. `acceptance`: the mean over positions of
    Σ min(p, q) at temperature 1, which is how often speculative sampling accepts a draft token (Leviathan et al. 2023,
    section 3). `bands` by how sure the cheap predictor is.
    """

    positions: int
    same: float
    acceptance: float
    bands: list[Band]


def middle_layer(model: LlamaForCausalLM) -> Predictor:
    """What the model predicts after its middle layer, through its last norm and head."""

    def predict(ids: torch.Tensor) -> torch.Tensor:
        (hidden,) = hidden_after(model, ids, MIDDLE_LAYER)
        logits: torch.Tensor = model.lm_head(hidden)
        return logits

    return predict


def whole(model: LlamaForCausalLM) -> Predictor:
    def predict(ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = model(input_ids=ids, use_cache=False).logits
        return logits

    return predict


def margin(probabilities: torch.Tensor) -> torch.Tensor:
    """The largest probability less the second largest, over the last axis."""
    top = probabilities.topk(2, -1).values
    return top[..., 0] - top[..., 1]


def confidence(probabilities: torch.Tensor) -> torch.Tensor:
    """The largest probability, which is exp(−NLL) of the top token."""
    return probabilities.max(-1).values


@torch.no_grad()
def agreement(
    cheap: Predictor,
    generator: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    written: Sequence[tuple[str, str]],
    sureness: Callable[[torch.Tensor], torch.Tensor],
) -> Agreement:
    """Compare over `written`, (user turn, what the generator wrote greedily); bands are by `sureness` of `cheap`."""
    sure, same, overlap = [], [], []
    for start in range(0, len(written), _ROWS):
        batch: Batch = pad_rows(completion_rows(tokenizer, written[start : start + _ROWS]), 0)
        counted = batch.targets >= 0
        p = whole(generator)(batch.ids)[counted].float().softmax(-1)
        q = cheap(batch.ids)[counted].float().softmax(-1)
        sure.append(sureness(q))
        same.append(p.argmax(-1) == q.argmax(-1))
        overlap.append(torch.minimum(p, q).sum(-1))
    sureness_all, same_all = torch.cat(sure), torch.cat(same).float()
    bands = []
    for low, high in zip(EDGES, [*EDGES[1:], 1.01], strict=True):
        inside = (sureness_all >= low) & (sureness_all < high)
        if inside.any():
            part = float(inside.float().mean())
            bands.append(Band(low, min(high, 1.0), part, float(same_all[inside].mean())))
    return Agreement(len(same_all), float(same_all.mean()), float(torch.cat(overlap).mean()), bands)
