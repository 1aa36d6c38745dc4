"""Logits and log-probabilities that requests read: planned before the device is given anything, computed together.

What is summed over all ids is summed in float64, row by row, so that no result depends on the other rows. The figures
of a draw say how its distribution looks, which is what a model's confidence in a token is measured by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from qpdsl.executor.engine.batch.staging import Numbers, Parcel
from qpdsl.executor.requests.drawing import LIKELIEST, ConfidenceMeasure
from qpdsl.executor.requests.request import ReadingRequest

# Dense logits of a long prompt would take gigabytes at once.
_ROWS_AT_ONCE = 64
# Logits of a few ids are sums of products that are all in memory at once.
_VALUES_AT_ONCE = 1024


class PendingRead(NamedTuple):
    """Hidden states [N, d] at the next N positions of a request; `done` positions were read before."""

    hidden: torch.Tensor
    request: ReadingRequest
    done: int


def plan_reads(
    readings: list[PendingRead],
    parcel: Parcel,
    gather: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    logits: Callable[[torch.Tensor], torch.Tensor],
) -> Callable[[], list[torch.Tensor]]:
    """What reads once the parcel was sent: for each reading [N, K], a row for each of its hidden states.

    K is the number of all ids where all logits are read. Values after the last that a position has repeat its first.
    `gather` gives the logits [N, K] of hidden states [N, d] and ids int64 [K], `logits` those of all ids.
    """
    by_ids: dict[tuple[int, ...], list[int]] = {}
    others: list[int] = []
    whole: list[int] = []
    for index, reading in enumerate(readings):
        if reading.request.whole:
            whole.append(index)
        elif (ids := reading.request.ids) is not None:
            by_ids.setdefault(ids, []).append(index)
        else:
            others.append(index)
    plans: list[tuple[list[int], Callable[[], Iterable[torch.Tensor]]]] = [
        (members, _plan_values([readings[index].hidden for index in members], ids, parcel, gather))
        for ids, members in by_ids.items()
    ]
    if whole:
        plans.append((whole, lambda: _whole([readings[index].hidden for index in whole], logits)))
    if others:
        plans.append((others, _plan_logprobs([readings[index] for index in others], parcel, logits)))

    def read() -> list[torch.Tensor]:
        tables: dict[int, torch.Tensor] = {}
        for members, plan in plans:
            tables |= zip(members, plan(), strict=True)
        return [tables[index] for index in range(len(readings))]

    return read


def _whole(parts: list[torch.Tensor], logits: Callable[[torch.Tensor], torch.Tensor]) -> Iterable[torch.Tensor]:
    """All logits [N, V] at each of the parts [N, d]."""
    rows = joined_rows([logits(piece) for piece in torch.split(joined_rows(parts), _ROWS_AT_ONCE)])
    return torch.split(rows, [len(part) for part in parts])


def _plan_values(
    parts: list[torch.Tensor],
    ids: tuple[int, ...],
    parcel: Parcel,
    gather: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> Callable[[], Iterable[torch.Tensor]]:
    """The logits of the same ids at each of the parts [N, d]."""
    sent = parcel.add([np.array(ids)])

    def read() -> Iterable[torch.Tensor]:
        (chosen,) = sent()
        values = [gather(piece, chosen) for piece in torch.split(joined_rows(parts), _VALUES_AT_ONCE)]
        return torch.split(joined_rows(values), [len(part) for part in parts])

    return read


def _plan_logprobs(
    readings: list[PendingRead], parcel: Parcel, logits: Callable[[torch.Tensor], torch.Tensor]
) -> Callable[[], Iterable[torch.Tensor]]:
    """The log-probabilities that the readings ask for."""
    # What each row reads: for each value the ids whose probabilities are summed.
    reads: list[tuple[tuple[int, ...], ...]] = []
    # Of each reading, where its values lie among those of all rows, which are numbered as they come.
    cells: list[np.ndarray[Any, np.dtype[np.int64]]] = []
    count = 0
    for hidden, request, done in readings:
        own = [request.read_ids(place) for place in range(done, done + len(hidden))]
        firsts = count + np.append(0, np.cumsum([len(read) for read in own]))
        place = np.arange(max(map(len, own)))
        lengths = np.array([len(read) for read in own])[:, None]
        cells.append(firsts[:-1, None] + np.where(place < lengths, place, 0))
        count = int(firsts[-1])
        reads += own
    steps = [
        _LogProbs.of(reads[first : first + _ROWS_AT_ONCE], parcel) for first in range(0, len(reads), _ROWS_AT_ONCE)
    ]
    sent = parcel.add([np.concatenate([cell.flatten() for cell in cells])])

    def read() -> Iterable[torch.Tensor]:
        hidden = joined_rows([reading.hidden for reading in readings])
        pieces = zip(steps, torch.split(hidden, _ROWS_AT_ONCE), strict=True)
        values = joined_rows([step.values(logits(piece)) for step, piece in pieces])
        (order,) = sent()
        tables = torch.split(values[order], [cell.size for cell in cells])
        return [table.view(cell.shape) for table, cell in zip(tables, cells, strict=True)]

    return read


class _LogProbs(NamedTuple):
    """Log-probabilities that are read from some rows of logits.

    `sent`: rows int64 [n] and ids int64 [n, w] for each number w of ids of a value, then where the values lie after
    these are joined.
    """

    sent: Callable[[], list[torch.Tensor]]

    @classmethod
    def of(cls, reads: list[tuple[tuple[int, ...], ...]], parcel: Parcel) -> _LogProbs:
        by_width: dict[int, list[tuple[int, int, tuple[int, ...]]]] = {}
        value = 0
        for row, read in enumerate(reads):
            for ids in read:
                by_width.setdefault(len(ids), []).append((value, row, ids))
                value += 1
        arrays: list[Numbers] = []
        order: list[int] = []
        for members in by_width.values():
            arrays += [np.array([row for _, row, _ in members]), np.array([ids for _, _, ids in members])]
            order += [place for place, _, _ in members]
        return cls(parcel.add([*arrays, np.argsort(np.array(order))]))

    def values(self, logits: torch.Tensor) -> torch.Tensor:
        """Float64, one after the other as the rows of `logits` [N, V] have them."""
        *pairs, order = self.sent()
        wide = logits.double()
        # A sum alone is split among threads, where one of several has its own thread: it would have other bits.
        totals = wide.expand(max(2, len(wide)), -1).logsumexp(dim=-1)
        found = [
            wide[rows[:, None], ids].logsumexp(dim=-1) - totals[rows]
            for rows, ids in zip(pairs[::2], pairs[1::2], strict=True)
        ]
        return found[0] if len(found) == 1 else torch.cat(found)[order]


def joined_rows(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """The parts one below the other; a single one is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


# The measures that `confidences_of` computes, in the order of its table.
MEASURED: tuple[ConfidenceMeasure, ...] = ("top", "margin", "entropy")


def confidences_of(logits: torch.Tensor, measures: torch.Tensor) -> torch.Tensor:
    """Float64 [B] of masked `logits` [B, V], in which ids that may not come are -inf.

    By `measures` int64 [B], places in `MEASURED`: p1, p1 - p2 or 1 - H / ln(ids).
    """
    # A sum alone is split among threads, where one of several has its own thread: it would have other bits.
    wide = logits.double().expand(max(2, len(logits)), -1)
    probabilities = wide.softmax(dim=-1)
    top = probabilities.topk(min(2, wide.shape[-1]), dim=-1).values
    margins = top[:, 0] - top[:, 1] if top.shape[-1] > 1 else top[:, 0]
    entropies = torch.special.entr(probabilities).sum(dim=-1)
    most = wide.isfinite().sum(dim=-1).clamp(min=2).double().log()
    count = len(logits)
    table = torch.stack((top[:, 0], margins, 1 - entropies / most), dim=1)[:count]
    return table.gather(1, measures[:, None])[:, 0]


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
