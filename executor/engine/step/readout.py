"""What is read off a step's hidden states: the next token of each sample, logits and log-probabilities."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.functional import pad

from qpdsl.executor.engine.batch.staging import Staging
from qpdsl.executor.engine.memory.sequence import Sequence
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.step.sampler import NEAR_CUT_PROBABILITY, Draw
from qpdsl.executor.requests.request import GenerateRequest, LogProbRequest, Mask, ReadRequest, SamplingParams

# Dense logits of a long prompt would take gigabytes at once.
_ROWS_AT_ONCE = 64

# As `sampler.sample`.
Sampler = Callable[[torch.Tensor, list[SamplingParams], list[int], list[int]], Draw]


class Drawn(NamedTuple):
    """A `Draw` on the host."""

    tokens: list[int]
    logprobs: list[float]
    near_ties: list[bool]


class Reading(NamedTuple):
    """Hidden states [N, d] at the next N positions of a request, of which `done` were read before."""

    hidden: torch.Tensor
    request: ReadRequest | LogProbRequest
    done: int


class Drawer:
    """Reads one model's hidden states. It waits for the device once a call, for the results.

    `rows`: every product with the head is padded to so many rows, for a row's bits not to depend on their number;
    None where they do not, or where it does not matter.
    """

    def __init__(self, model: PagedModel, staging: Staging, sample: Sampler, rows: int | None = None) -> None:
        self._model = model
        self._staging = staging
        self._sample = sample
        self._rows = rows

    def draw(
        self, hidden: torch.Tensor, middle: torch.Tensor | None, rows: list[int], sequences: list[Sequence]
    ) -> Drawn:
        """One token for each sequence; `rows` says which hidden state each reads (forks share one).

        `middle` are the hidden states after the middle layer, where a sequence asks for them.
        """
        drawn = self._drawn(hidden, middle, rows, sequences)
        if not drawn.tokens.is_cuda:
            return Drawn(drawn.tokens.tolist(), drawn.logprobs.tolist(), drawn.near_ties.tolist())
        # Every one of them is exact in double.
        together = torch.stack((drawn.tokens.double(), drawn.logprobs.double(), drawn.near_ties.double()))
        tokens, logprobs, near = self._staging.fetch(together).tolist()
        return Drawn([int(token) for token in tokens], logprobs, [each > 0 for each in near])

    def read(self, readings: list[Reading]) -> list[list[tuple[float, ...]]]:
        """What each request reads at its positions: the logits of its ids, or a log-probability."""
        values = [self._read(*reading) for reading in readings]
        if not values:
            return []
        flat = self._staging.fetch(torch.cat([each.flatten().double() for each in values])).tolist()
        found, at = [], 0
        for each in values:
            count, width = each.shape
            found.append([tuple(flat[row : row + width]) for row in range(at, at + count * width, width)])
            at += count * width
        return found

    def _drawn(
        self, hidden: torch.Tensor, middle: torch.Tensor | None, rows: list[int], sequences: list[Sequence]
    ) -> Draw:
        logits = self._chosen(hidden, rows)
        allowed = self._allowed(sequences, logits.shape[-1])
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
            return self._sample(logits, params, keys, positions)
        early = self._chosen(middle, rows)
        if allowed is not None:
            early = early.masked_fill(~allowed, float("-inf"))
        leaves, near = self._leaves(early, sequences)
        drawn = self._sample(torch.where(leaves[:, None], early, logits), params, keys, positions)
        # In double, so that how the sum is parted among threads does not show.
        wide = logits.double()
        logprobs = (wide.gather(1, drawn.tokens[:, None])[:, 0] - wide.logsumexp(dim=-1)).float()
        return Draw(drawn.tokens, logprobs, drawn.near_ties | near)

    def _read(self, hidden: torch.Tensor, request: ReadRequest | LogProbRequest, done: int) -> torch.Tensor:
        """[N, K], a row for each hidden state."""
        if isinstance(request, ReadRequest):
            (ids,) = self._staging.send([np.array(request.ids)])
            return self._padded(hidden, lambda piece: self._model.head.gather(piece, ids))
        wanted = request.read[done : done + len(hidden)]
        values: list[torch.Tensor] = []
        for start in range(0, len(hidden), _ROWS_AT_ONCE):
            end = start + _ROWS_AT_ONCE
            some = wanted[start:end]
            width = max(map(len, some))
            # A row's ids, filled up with one that does not count.
            table = [[*ids, *[ids[0]] * (width - len(ids))] for ids in some]
            counts = [[place < len(ids) for place in range(width)] for ids in some]
            ids, counted = self._staging.send([np.array(table), np.array(counts)])
            logits = self._logits(hidden[start:end]).double()
            chosen = logits.gather(1, ids).masked_fill(~counted, float("-inf"))
            values.append(chosen.logsumexp(dim=-1) - logits.logsumexp(dim=-1))
        return torch.cat(values)[:, None]

    def _chosen(self, hidden: torch.Tensor, rows: list[int]) -> torch.Tensor:
        """Logits [B, V] of the hidden states `rows`, each computed once."""
        if rows == list(range(len(hidden))):
            return self._logits(hidden)
        unique = sorted(set(rows))
        place = {row: index for index, row in enumerate(unique)}
        some, places = self._staging.send([np.array(unique), np.array([place[row] for row in rows])])
        return self._logits(hidden.index_select(0, some)).index_select(0, places)

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._padded(hidden, self._model.logits)

    def _padded(self, hidden: torch.Tensor, compute: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        rows = self._rows
        if rows is None:
            return compute(hidden)
        count = len(hidden)
        pieces = torch.split(pad(hidden, (0, 0, 0, -count % rows)), rows)
        return torch.cat([compute(piece) for piece in pieces])[:count]

    def _allowed(self, sequences: list[Sequence], vocabulary: int) -> torch.Tensor | None:
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
        (packed,) = self._staging.send([words])
        shifts = torch.arange(32, dtype=torch.int32, device=packed.device)
        return ((packed[:, :, None] >> shifts) & 1).flatten(1)[:, :vocabulary].bool()

    def _leaves(self, early: torch.Tensor, sequences: list[Sequence]) -> tuple[torch.Tensor, torch.Tensor]:
        """Which sequences leave at the middle layer, bool [B], and whether rounding could have decided it."""
        margins = []
        for sequence in sequences:
            assert isinstance(sequence.request, GenerateRequest)
            margins.append(float("inf") if sequence.request.early is None else sequence.request.early)
        (least,) = self._staging.send([np.array(margins)])
        top = early.double().softmax(dim=-1).topk(2, dim=-1).values
        surplus = top[:, 0] - top[:, 1] - least
        return surplus >= 0, surplus.abs() < NEAR_CUT_PROBABILITY
