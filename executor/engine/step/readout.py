"""What is read off a step's hidden states: the next token of each sample, logits and log-probabilities.

This is the logits processor of other engines: it computes logits, masks what a constraint forbids, takes the early exit
where the exit layer is confident, and samples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.functional import pad

from qpdsl.executor.engine.batch.staging import Staging
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.step.draws import Draw, Masks
from qpdsl.executor.engine.step.sampler import NEAR_CUT_PROBABILITY, SampledTokens, Sampler
from qpdsl.executor.engine.step.token_head import HeadDraws, TokenHead
from qpdsl.executor.requests.request import LogProbRequest, ReadRequest, TreeRequest

# Dense logits of a long prompt would take gigabytes at once.
_ROWS_AT_ONCE = 64


class HostTokens(NamedTuple):
    """`SampledTokens` on the host."""

    tokens: list[int]
    logprobs: list[float]
    near_ties: list[bool]


class Reading(NamedTuple):
    """Hidden states [N, d] at the next N positions of a request; `done` positions were read before."""

    hidden: torch.Tensor
    request: ReadRequest | LogProbRequest | TreeRequest
    done: int


class Readout:
    """Reads one model's hidden states. It waits for the device once a call, for the results.

    `head` draws what needs no logits of all ids; None where they are computed for every draw. With `rows`, every
    product that computes them is padded to so many rows, so that a row's bits do not depend on their number; None where
    they do not, or where it does not matter.
    """

    def __init__(
        self,
        model: PagedModel,
        staging: Staging,
        sampler: Sampler,
        rows: int | None = None,
        head: TokenHead | None = None,
    ) -> None:
        self._model = model
        self._head = head
        self._staging = staging
        self._sampler = sampler
        self._rows = rows

    def sample(
        self, hidden: torch.Tensor, exit_hidden: torch.Tensor | None, draws: list[Draw], masks: Masks | None
    ) -> HostTokens:
        """One token for each draw; several may read the same hidden state.

        `exit_hidden` are the hidden states after the exit layer, where a draw has an exit margin.
        """
        sampled = self._sampled(hidden, exit_hidden, draws, masks)
        if not sampled.tokens.is_cuda:
            return HostTokens(sampled.tokens.tolist(), sampled.logprobs.tolist(), sampled.near_ties.tolist())
        # All of them are exact in double.
        columns = torch.stack((sampled.tokens.double(), sampled.logprobs.double(), sampled.near_ties.double()))
        tokens, logprobs, near_ties = self._staging.fetch(columns).tolist()
        return HostTokens([int(token) for token in tokens], logprobs, [near_tie > 0 for near_tie in near_ties])

    def read(self, readings: list[Reading]) -> list[list[tuple[float, ...]]]:
        """For each reading, what it reads at each of its positions: the logits of its ids, or log-probabilities."""
        tables = [self._read(*reading) for reading in readings]
        if not tables:
            return []
        flat = self._staging.fetch(torch.cat([table.flatten().double() for table in tables])).tolist()
        values: list[list[tuple[float, ...]]] = []
        start = 0
        for table in tables:
            count, width = table.shape
            end = start + count * width
            values.append([tuple(flat[row : row + width]) for row in range(start, end, width)])
            start = end
        return values

    def _sampled(
        self, hidden: torch.Tensor, exit_hidden: torch.Tensor | None, draws: list[Draw], masks: Masks | None
    ) -> SampledTokens:
        head = self._head
        if head is None:
            return self._by_logits(hidden, exit_hidden, draws, masks)
        reading = [index for index, draw in enumerate(draws) if _needs_logits(draw)]
        if not reading:
            return head(hidden, HeadDraws.of(draws, masks))
        if len(reading) == len(draws):
            return self._by_logits(hidden, exit_hidden, draws, masks)
        others = sorted(set(range(len(draws))) - set(reading))
        drawn = head(hidden, HeadDraws.of([draws[index] for index in others], masks))
        read = self._by_logits(hidden, exit_hidden, [draws[index] for index in reading], masks)
        # Where each draw lies after both are joined.
        (places,) = self._staging.send([np.argsort(np.array(others + reading))])
        return SampledTokens(
            torch.cat((drawn.tokens, read.tokens))[places],
            torch.cat((drawn.logprobs, read.logprobs))[places],
            torch.cat((drawn.near_ties, read.near_ties))[places],
        )

    def _by_logits(
        self, hidden: torch.Tensor, exit_hidden: torch.Tensor | None, draws: list[Draw], masks: Masks | None
    ) -> SampledTokens:
        rows = [draw.row for draw in draws]
        logits = self._logits_of(hidden, rows)
        allowed = None if masks is None else self._allowed(draws, masks, logits.shape[-1])
        if allowed is not None:
            logits = logits.masked_fill(~allowed, float("-inf"))
        params = [draw.params for draw in draws]
        keys, positions = [draw.key for draw in draws], [draw.position for draw in draws]
        if exit_hidden is None:
            return self._sampler(logits, params, keys, positions)
        exit_logits = self._logits_of(exit_hidden, rows)
        if allowed is not None:
            exit_logits = exit_logits.masked_fill(~allowed, float("-inf"))
        exits, near_margin = self._exits(exit_logits, draws)
        sampled = self._sampler(torch.where(exits[:, None], exit_logits, logits), params, keys, positions)
        # In double, so that the result does not depend on how threads split the sum.
        wide = logits.double()
        logprobs = (wide.gather(1, sampled.tokens[:, None])[:, 0] - wide.logsumexp(dim=-1)).float()
        return SampledTokens(sampled.tokens, logprobs, sampled.near_ties | near_margin)

    def _read(
        self, hidden: torch.Tensor, request: ReadRequest | LogProbRequest | TreeRequest, done: int
    ) -> torch.Tensor:
        """[N, K], a row for each hidden state; values after the last that a position has repeat its first."""
        if isinstance(request, ReadRequest):
            (ids,) = self._staging.send([np.array(request.ids)])
            return self._padded(hidden, lambda piece: self._model.head.gather(piece, ids))
        read_ids = [request.read_ids(place) for place in range(done, done + len(hidden))]
        most = max(map(len, read_ids))
        values: list[torch.Tensor] = []
        for start in range(0, len(hidden), _ROWS_AT_ONCE):
            end = start + _ROWS_AT_ONCE
            rows = [[*read, *[read[0]] * (most - len(read))] for read in read_ids[start:end]]
            width = max(len(ids) for read in rows for ids in read)
            # Ids of a value, padded with one that does not count.
            padded = [[[*ids, *[ids[0]] * (width - len(ids))] for ids in read] for read in rows]
            counts = [[[place < len(ids) for place in range(width)] for ids in read] for read in rows]
            ids, counted = self._staging.send([np.array(padded), np.array(counts)])
            logits = self._logits(hidden[start:end]).double()
            chosen = logits.gather(1, ids.flatten(1)).view(ids.shape).masked_fill(~counted, float("-inf"))
            # A sum alone is split among threads, where one of several has its own thread: it would have other bits.
            totals = logits.expand(max(2, len(logits)), -1).logsumexp(dim=-1)[: len(logits)]
            values.append(chosen.logsumexp(dim=-1) - totals[:, None])
        return torch.cat(values)

    def _logits_of(self, hidden: torch.Tensor, rows: list[int]) -> torch.Tensor:
        """Logits [B, V] of the hidden states `rows`, each computed once."""
        if rows == list(range(len(hidden))):
            return self._logits(hidden)
        distinct = sorted(set(rows))
        place = {row: index for index, row in enumerate(distinct)}
        selected, places = self._staging.send([np.array(distinct), np.array([place[row] for row in rows])])
        return self._logits(hidden.index_select(0, selected)).index_select(0, places)

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._padded(hidden, self._model.logits)

    def _padded(self, hidden: torch.Tensor, compute: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        rows = self._rows
        if rows is None:
            return compute(hidden)
        count = len(hidden)
        pieces = torch.split(pad(hidden, (0, 0, 0, -count % rows)), rows)
        return torch.cat([compute(piece) for piece in pieces])[:count]

    def _allowed(self, draws: list[Draw], masks: Masks, vocabulary: int) -> torch.Tensor | None:
        """The ids that may come next in each draw, bool [B, V]; None where nothing is masked."""
        own = [row for row, draw in enumerate(draws) if draw.allowed >= 0]
        if not own:
            return None
        words = np.full((len(draws), masks.bits.shape[1]), -1, dtype=np.int32)
        words[own] = masks.bits[[draws[row].allowed for row in own]]
        (packed,) = self._staging.send([words])
        shifts = torch.arange(32, dtype=torch.int32, device=packed.device)
        return ((packed[:, :, None] >> shifts) & 1).flatten(1)[:, :vocabulary].bool()

    def _exits(self, exit_logits: torch.Tensor, draws: list[Draw]) -> tuple[torch.Tensor, torch.Tensor]:
        """Which draws exit early, bool [B], and whether rounding could have decided it, bool [B]."""
        exit_margins = [draw.exit_margin for draw in draws]
        (margins,) = self._staging.send([np.array([float("inf") if m is None else m for m in exit_margins])])
        top = exit_logits.double().softmax(dim=-1).topk(2, dim=-1).values
        surplus = top[:, 0] - top[:, 1] - margins
        return surplus >= 0, surplus.abs() < NEAR_CUT_PROBABILITY


def _needs_logits(draw: Draw) -> bool:
    """Whether a draw looks at the logits of all ids: filters sort them, an early exit compares two distributions."""
    return draw.exit_margin is not None or (draw.params.filtered and not draw.params.greedy)
