"""What a drafting model would draw under a sample's own noise: one token behind each row, or the best few."""

from __future__ import annotations

from collections.abc import Sequence as Several

import numpy as np
import torch

from qpdsl.executor.engine.memory.sequence import Sequence
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.step.draws import Draw, Masks
from qpdsl.executor.engine.step.sampler import cuts, filtered_scores, perturbed


def draw_of(sample: Sequence, row: int, ahead: int, allowed: int = -1) -> Draw:
    """The draw of a sample's token that stands `ahead` places behind its next one, from a row of hidden states."""
    request = sample.generation
    position = request.drawn + sample.drawn + ahead
    return Draw(row, request.sampling, request.keys[sample.index], position, allowed, request.sparse)


def ranked(
    model: PagedModel, hidden: torch.Tensor, draws: Several[Draw], masks: Masks | None, count: int
) -> list[list[int]]:
    """For each draw the ids of the `count` largest perturbed scores, the largest first; at T=0, of the logits.

    `hidden` [W, d]. Ids that may not be drawn are left out.
    """
    rows = torch.tensor([draw.row for draw in draws], device=hidden.device)
    scores = model.logits(hidden.index_select(0, rows)).float().cpu()
    width = scores.shape[1]
    if masks is not None:
        for score, draw in zip(scores, draws, strict=True):
            if draw.allowed >= 0:
                bits = np.unpackbits(masks.bits[draw.allowed].view(np.uint8), count=width, bitorder="little")
                score[torch.from_numpy(bits == 0)] = float("-inf")
    noisy = [index for index, draw in enumerate(draws) if not draw.params.greedy]
    if noisy:
        own = [draws[index] for index in noisy]
        temperature = torch.tensor([draw.params.temperature for draw in own])
        rescaled = scores[noisy] / temperature[:, None]
        if any(draw.params.filtered for draw in own):
            bounds = (torch.from_numpy(bound) for bound in cuts([draw.params for draw in own], width))
            rescaled, _ = filtered_scores(rescaled, *bounds)
        scores[noisy] = perturbed(rescaled, [draw.key for draw in own], [draw.position for draw in own])
    best = scores.topk(min(count, width), dim=1)
    found = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [[token for token, score in zip(*row, strict=True) if score > float("-inf")] for row in found]
