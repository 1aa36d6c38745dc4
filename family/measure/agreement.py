"""How often a cheaper predictor agrees with the generator: the mini model, and the generator's own middle layer.

Measured on texts that the generator wrote greedily, at every position where it chose a token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from family.training.batches import completion_rows, pad_rows
from family.training.generator import MIDDLE_LAYER
from family.training.llama import hidden_after

EDGES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99)
_ROWS = 50

Predictor = Callable[[torch.Tensor], torch.Tensor]
"""From ids [rows, width] to logits [rows, width, vocabulary]."""


@dataclass(frozen=True)
class Band:
    """Positions whose confidence is in [low, high): their share of all, and how often both choose the same token."""

    low: float
    high: float
    share: float
    agree: float


@dataclass(frozen=True)
class Agreement:
    """`same`: the share of positions where both choose the same token. `acceptance`: the mean over positions of
    Σ min(p, q) at temperature 1, which is how often speculative sampling accepts a draft token (Leviathan et al. 2023,
    section 3). `bands` are by the confidence of the cheap predictor.
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


def last_layer(model: LlamaForCausalLM) -> Predictor:
    """What the whole model predicts."""

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
    measure: Callable[[torch.Tensor], torch.Tensor],
) -> Agreement:
    """Compare over `written`, pairs of a user turn and the generator's greedy text. Bands are by `measure` of `cheap`.

    `measure` takes probabilities [positions, vocabulary] to [positions]: `confidence` or `margin`.
    """
    measures, same, overlap = [], [], []
    for start in range(0, len(written), _ROWS):
        batch = pad_rows(completion_rows(tokenizer, written[start : start + _ROWS]), 0)
        counted = batch.targets >= 0
        p = last_layer(generator)(batch.ids)[counted].float().softmax(-1)
        q = cheap(batch.ids)[counted].float().softmax(-1)
        measures.append(measure(q))
        same.append(p.argmax(-1) == q.argmax(-1))
        overlap.append(torch.minimum(p, q).sum(-1))
    all_measures, all_same = torch.cat(measures), torch.cat(same).float()
    bands = []
    for low, high in zip(EDGES, [*EDGES[1:], 1.01], strict=True):
        inside = (all_measures >= low) & (all_measures < high)
        if inside.any():
            share = float(inside.float().mean())
            bands.append(Band(low, min(high, 1.0), share, float(all_same[inside].mean())))
    return Agreement(len(all_same), float(all_same.mean()), float(torch.cat(overlap).mean()), bands)
