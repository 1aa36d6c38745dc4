"""What is read off a step's hidden states: the next token of each sample, logits and log-probabilities."""

from __future__ import annotations

import numpy as np
import torch

from qpdsl.executor.engine.model import PagedModel
from qpdsl.executor.engine.request import GenerateRequest, LogProbRequest, Mask, ReadRequest, SamplingParams
from qpdsl.executor.engine.sampler import NEAR_CUT_PROBABILITY, Draw, sample
from qpdsl.executor.engine.sequence import Sequence

# Dense logits of a long prompt would take gigabytes at once.
_ROWS_AT_ONCE = 64


def draw(
    model: PagedModel, hidden: torch.Tensor, middle: torch.Tensor | None, rows: list[int], sequences: list[Sequence]
) -> Draw:
    """One token for each sequence; `rows` says which hidden state each reads (forks share one).

    `middle` are the hidden states after the middle layer, where a sequence asks for them.
    """
    logits = _logits(model, hidden, rows)
    allowed = _allowed(sequences, logits.shape[-1], logits.device)
    if allowed is not None:
        logits = logits.masked_fill(~allowed, float("-inf"))
    params: list[SamplingParams] = []
    keys: list[int] = []
    positions: list[int] = []
    for sequence in sequences:
        request = sequence.request
        assert isinstance(request, GenerateRequest)
        params.append(request.sampling)
        keys.append(request.keys[sequence.index])
        positions.append(request.drawn + sequence.drawn)
    if middle is None:
        return sample(logits, params, keys, positions)
    early = _logits(model, middle, rows)
    if allowed is not None:
        early = early.masked_fill(~allowed, float("-inf"))
    leaves, near = _leaves(early, sequences)
    drawn = sample(torch.where(leaves[:, None], early, logits), params, keys, positions)
    logprobs = logits.gather(1, drawn.tokens[:, None])[:, 0] - logits.logsumexp(dim=-1)
    return Draw(drawn.tokens, logprobs, drawn.near_ties | near)


def read(model: PagedModel, hidden: torch.Tensor, request: ReadRequest | LogProbRequest, done: int) -> torch.Tensor:
    """What the request reads at its positions from the `done`th on, a row of `hidden` each: float [N, K]."""
    if isinstance(request, ReadRequest):
        return model.head.gather(hidden, request.ids)
    wanted = request.read[done : done + len(hidden)]
    values: list[torch.Tensor] = []
    for start in range(0, len(hidden), _ROWS_AT_ONCE):
        end = start + _ROWS_AT_ONCE
        logits = model.logits(hidden[start:end]).double()
        total = logits.logsumexp(dim=-1)
        for row, ids in enumerate(wanted[start:end]):
            values.append(logits[row, list(ids)].logsumexp(dim=-1) - total[row])
    return torch.stack(values)[:, None]


def _logits(model: PagedModel, hidden: torch.Tensor, rows: list[int]) -> torch.Tensor:
    if rows == list(range(len(hidden))):
        return model.logits(hidden)
    unique = sorted(set(rows))
    place = {row: index for index, row in enumerate(unique)}
    return model.logits(hidden[unique])[[place[row] for row in rows]]


def _allowed(sequences: list[Sequence], vocabulary: int, device: torch.device) -> torch.Tensor | None:
    """The ids that each sequence may draw, bool [B, V]; None where nothing is masked."""
    kinds: dict[type[Mask], list[int]] = {}
    for row, sequence in enumerate(sequences):
        if sequence.mask is not None:
            kinds.setdefault(type(sequence.mask), []).append(row)
    if not kinds:
        return None
    words = np.full((len(sequences), -(-vocabulary // 32)), -1, dtype=np.int32)
    for rows in kinds.values():
        masks = [mask for row in rows if (mask := sequences[row].mask) is not None]
        bits = np.zeros((len(rows), words.shape[1]), dtype=np.int32)
        masks[0].fill(masks, bits)
        words[rows] = bits
    shifts = torch.arange(32, dtype=torch.int32, device=device)
    packed = torch.from_numpy(words).to(device)
    return ((packed[:, :, None] >> shifts) & 1).flatten(1)[:, :vocabulary].bool()


def _leaves(early: torch.Tensor, sequences: list[Sequence]) -> tuple[torch.Tensor, torch.Tensor]:
    """Which sequences leave at the middle layer, bool [B], and whether rounding could have decided it."""
    margins = []
    for sequence in sequences:
        assert isinstance(sequence.request, GenerateRequest)
        margins.append(float("inf") if sequence.request.early is None else sequence.request.early)
    top = early.double().softmax(dim=-1).topk(2, dim=-1).values
    surplus = top[:, 0] - top[:, 1] - torch.tensor(margins, dtype=torch.float64, device=early.device)
    return surplus >= 0, surplus.abs() < NEAR_CUT_PROBABILITY
