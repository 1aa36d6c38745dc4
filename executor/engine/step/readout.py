"""What is read off a step's hidden states: the next token of each sample, logits and log-probabilities.

This is the logits processor of other engines: it computes logits, masks what a constraint forbids, and samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.functional import pad

from qpdsl.executor.engine.batch.staging import Numbers, Parcel, Staging, brought_back
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.step.adjustments import adjusted, columns_of
from qpdsl.executor.engine.step.contrast import contrast_arrays, contrasted
from qpdsl.executor.engine.step.device_head import DeviceHead, lines_of
from qpdsl.executor.engine.step.draws import Draw, Masks, drawn_by
from qpdsl.executor.engine.step.planned_reads import (
    MEASURED,
    PendingRead,
    confidences_of,
    figures_of,
    joined_rows,
    plan_reads,
)
from qpdsl.executor.engine.step.routed_head import RoutedHead
from qpdsl.executor.engine.step.sampler import NEAR_TIE_GAP, DeviceSampler, SampledTokens, Sampler
from qpdsl.executor.engine.step.token_head import HeadDraws, TokenHead
from qpdsl.executor.kernels.plain.head_twins import allowed
from qpdsl.executor.requests.drawing import DrawFigures
from qpdsl.executor.requests.request import Values


class HostTokens(NamedTuple):
    """`SampledTokens` on the host, with the confidence in each token where its draw asks for it, else no number.

    `figures` are None for a draw that does not ask for them.
    """

    tokens: list[int]
    logprobs: list[float]
    near_ties: list[bool]
    confidences: list[float]
    figures: list[DrawFigures | None]

    def of(self, rows: list[int] | None) -> HostTokens:
        """Those of some draws that ask for tokens alone; None for all."""
        if rows is None:
            return self
        tokens, logprobs = [self.tokens[row] for row in rows], [self.logprobs[row] for row in rows]
        return HostTokens(tokens, logprobs, [self.near_ties[row] for row in rows], [], [])


class Results(NamedTuple):
    """`tokens`: one for each draw. `values`: for each reading, what it reads at each of its positions."""

    tokens: HostTokens
    values: list[list[Values]]


class Pending:
    """What a readout comes to, which may still be under way on the device.

    `tokens` int64 [D]: those that are drawn, there; None where nobody may ask for them.
    """

    def __init__(self, results: Callable[[], Results], tokens: torch.Tensor | None = None) -> None:
        self.tokens = tokens
        self._finish: Callable[[], Results] | None = results
        self._results: Results | None = None

    def wait(self) -> Results:
        """The results, once they are there. It waits for the device once; a second call gives the same."""
        if self._results is None:
            assert self._finish is not None
            self._results, self._finish = self._finish(), None
        return self._results


class Readout:
    """Reads one model's hidden states. All that one call reads comes back by one copy.

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

    @property
    def routed(self) -> RoutedHead | None:
        """The head that a policy may route; None where there is one way to compute it."""
        return self._head if isinstance(self._head, RoutedHead) else None

    @property
    def asynchronous(self) -> bool:
        """Whether results may be under way while the host goes on."""
        return self._staging.asynchronous

    def start(
        self, hidden: torch.Tensor | None, draws: list[Draw], masks: Masks | None, readings: list[PendingRead]
    ) -> Pending:
        """Launches all that is read and drawn, and the copy back; it never waits for a device.

        `hidden` may be None where there are no draws. Several draws may read the same hidden state, and nobody asks
        whether one has an `exit`. What was passed may be overwritten before the results are waited for.
        """
        parcel = Parcel(self._staging)
        reads = plan_reads(readings, parcel, self._gather, self._logits)
        drawn = None
        if draws:
            assert hidden is not None
            if self.routed is not None:
                self.routed.choice = None
            drawn = self._plan_draws(hidden, draws, masks, parcel)
        parcel.send()
        tables = reads()
        sampled = None if drawn is None else drawn()
        if not self.asynchronous:
            results = Results(_on_host(draws, sampled), _values(readings, tables))
            return Pending(lambda: results)
        columns = [] if sampled is None else list(sampled)
        there = [column is not None for column in columns]
        back = brought_back(self._staging, [part for part in (*tables, *columns) if part is not None])
        first = len(tables)

        def finished() -> Results:
            found = back()
            rest = iter(found[first:])
            host = [next(rest) if brought else None for brought in there]
            return Results(_on_host(draws, _of_columns(host)), _values(readings, found[:first]))

        return Pending(finished)

    @property
    def has_head(self) -> bool:
        """Whether a head draws what needs no logits of all ids."""
        return self._head is not None

    def start_plain(self, hidden: torch.Tensor, draws: HeadDraws) -> Pending:
        """As `start`, of draws by the head, whose confidences nobody asks for. There must be one."""
        head = self._head
        assert head is not None
        if self.routed is not None:
            self.routed.choice = None
        sampled = head(hidden, draws)
        told = (sampled.tokens, sampled.logprobs, sampled.near_ties)
        back = brought_back(self._staging, list(told)) if self.asynchronous else lambda: list(told)

        def finished() -> Results:
            tokens, logprobs, near_ties = (column.tolist() for column in back())
            return Results(HostTokens(tokens, logprobs, near_ties, [], []), [])

        return Pending(finished, sampled.tokens if self.asynchronous else None)

    def sample(self, hidden: torch.Tensor, draws: list[Draw], masks: Masks | None) -> HostTokens:
        """One token for each draw; see `start`."""
        return self.start(hidden, draws, masks, []).wait().tokens

    def read(self, readings: list[PendingRead]) -> list[list[Values]]:
        """For each reading, what it reads at each of its positions: logits of all or its ids, or log-probabilities."""
        return self.start(None, [], None, readings).wait().values

    def with_margins(
        self, hidden: torch.Tensor, draws: list[Draw], masks: Masks | None
    ) -> tuple[SampledTokens, torch.Tensor] | None:
        """See `TokenHead`; None too where no head draws. For draws without filters."""
        return None if self._head is None else self._head.with_margins(hidden, HeadDraws.of(draws, masks))

    def masked_logits(self, hidden: torch.Tensor, draws: list[Draw], masks: Masks | None) -> torch.Tensor:
        """Logits float32 [B, V] of each draw, -inf for the ids that it may not take."""
        parcel = Parcel(self._staging)
        planned = self._plan_rows(hidden, draws, masks, parcel)
        parcel.send()
        return planned.masked(planned.logits())

    def drawn(self, logits: torch.Tensor, draws: list[Draw]) -> SampledTokens:
        """A token for each draw from its masked logits [B, V]."""
        return self._sampler(logits, *drawn_by(draws))

    def _plan_draws(
        self, hidden: torch.Tensor, draws: list[Draw], masks: Masks | None, parcel: Parcel
    ) -> Callable[[], SampledTokens]:
        """What draws once the parcel was sent."""
        head = self._head
        if head is None:
            return self._plan_logits(hidden, draws, masks, parcel)
        tells_margins = not isinstance(head, DeviceHead)
        reading = [
            index
            for index, draw in enumerate(draws)
            if _needs_logits(draw) or not (tells_margins or _by_probability(draw))
        ]
        if not reading:
            return self._plan_head(head, hidden, draws, masks, parcel)
        if len(reading) == len(draws):
            return self._plan_logits(hidden, draws, masks, parcel)
        others = sorted(set(range(len(draws))) - set(reading))
        by_head = self._plan_head(head, hidden, [draws[index] for index in others], masks, parcel)
        by_logits = self._plan_logits(hidden, [draws[index] for index in reading], masks, parcel)
        # Where each draw lies after both are joined.
        order = parcel.add([np.argsort(np.array(others + reading))])

        def drawn() -> SampledTokens:
            first, second = by_head(), by_logits()
            (places,) = order()
            return SampledTokens(
                torch.cat((first.tokens, second.tokens))[places],
                torch.cat((first.logprobs, second.logprobs))[places],
                torch.cat((first.near_ties, second.near_ties))[places],
                _joined(first, second, places),
                # Those that are told of are among those that are read.
                None
                if second.figures is None
                else torch.cat((second.figures.new_full((len(others), 3), math.nan), second.figures))[places],
            )

        return drawn

    def _plan_head(
        self, head: TokenHead, hidden: torch.Tensor, draws: list[Draw], masks: Masks | None, parcel: Parcel
    ) -> Callable[[], SampledTokens]:
        """Without logits of all ids, unless somebody asks for margins and the head does not tell them."""
        if isinstance(head, DeviceHead):
            by_head = head.planned(HeadDraws.of(draws, masks), parcel)
            return lambda: by_head(hidden)

        def drawn() -> SampledTokens:
            if all(map(_by_probability, draws)):
                return head(hidden, HeadDraws.of(draws, masks))
            told = head.with_margins(hidden, HeadDraws.of(draws, masks))
            if told is None:
                own = Parcel(self._staging)
                by_logits = self._plan_logits(hidden, draws, masks, own)
                own.send()
                return by_logits()
            sampled, margins = told
            return sampled._replace(confidences=margins)

        return drawn

    def _plan_logits(
        self, hidden: torch.Tensor, draws: list[Draw], masks: Masks | None, parcel: Parcel
    ) -> Callable[[], SampledTokens]:
        planned = self._plan_rows(hidden, draws, masks, parcel)
        by_kernel = None
        if isinstance(self._sampler, DeviceSampler):
            by_kernel = self._sampler.planned(*drawn_by(draws), planned.places, self._model.head.width, parcel)
        figures = any(draw.figures for draw in draws)
        confidences = not all(map(_by_probability, draws))
        ranked = [(index, draw.rank) for index, draw in enumerate(draws) if draw.rank is not None]
        measures = parcel.add([np.array([_measure(draw) for draw in draws])] if confidences else [])
        contrasts = parcel.add(contrast_arrays(draws, self._model.head.width))

        def drawn() -> SampledTokens:
            logits, near = planned.logits(), None
            if arrays := contrasts():
                logits, near = contrasted(planned.masked(logits), arrays)
            if by_kernel is not None:
                sampled = by_kernel(logits, planned.mask())
            if by_kernel is None or figures or confidences or ranked:
                logits = planned.masked(logits)
            if by_kernel is None:
                sampled = self.drawn(logits, draws)
            if near is not None:
                sampled = sampled._replace(near_ties=sampled.near_ties | near)
            for index, rank in ranked:
                sampled = _with_rank(sampled, logits[index], index, rank)
            if figures:
                sampled = sampled._replace(figures=figures_of(logits))
            if confidences:
                sampled = sampled._replace(confidences=confidences_of(logits, *measures()))
            return sampled

        return drawn

    def _plan_rows(self, hidden: torch.Tensor, draws: list[Draw], masks: Masks | None, parcel: Parcel) -> _LogitRows:
        """The logits of the hidden states that the draws read, each computed once."""
        rows = [draw.row for draw in draws]
        places = rows
        selected = parcel.add([])
        if rows != list(range(len(hidden))):
            distinct = sorted(set(rows))
            place = {row: index for index, row in enumerate(distinct)}
            places = [place[row] for row in rows]
            selected = parcel.add([np.array(distinct), np.array(places)])
        arrays: list[Numbers] = []
        if masks is not None and any(draw.allowed >= 0 for draw in draws):
            arrays = lines_of(np.array([draw.allowed for draw in draws]), masks.bits)
        adjustments = [draw.adjustment for draw in draws]
        adjusts = any(own is not None for own in adjustments)
        if not adjusts and all(draw.contrast is None for draw in draws):
            return _LogitRows(places, self._logits, hidden, selected, parcel.add(arrays))
        columns = parcel.add(columns_of(adjustments) if adjusts else [])
        return _LogitRows([*range(len(draws))], self._logits, hidden, selected, parcel.add(arrays), columns)

    def _gather(self, hidden: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return self._padded(hidden, lambda piece: self._model.head.gather(piece, ids))

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._padded(hidden, self._model.logits)

    def _padded(self, hidden: torch.Tensor, compute: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        rows, count = self._rows, len(hidden)
        if rows is None:
            return compute(hidden)
        if count % rows:
            hidden = pad(hidden, (0, 0, 0, -count % rows))
        return joined_rows([compute(piece) for piece in torch.split(hidden, rows)])[:count]


class _LogitRows(NamedTuple):
    """Logits that are still to be computed. `places`: which of them each draw reads.

    `selected`: the hidden states to compute them of and the places, nothing where those are all, in order. `lines`:
    bits and lines of the masks, nothing where none is masked. `changed`: see `columns_of`; None where each draw's
    logits stay as they are, else there is a row of them for each draw.
    """

    places: list[int]
    compute: Callable[[torch.Tensor], torch.Tensor]
    hidden: torch.Tensor
    selected: Callable[[], list[torch.Tensor]]
    lines: Callable[[], list[torch.Tensor]]
    changed: Callable[[], list[torch.Tensor]] | None = None

    def logits(self) -> torch.Tensor:
        """Float32 [R, V], each once, not masked."""
        chosen = self.selected()
        logits = self.compute(self.hidden.index_select(0, chosen[0]) if chosen else self.hidden)
        if self.changed is None:
            return logits
        logits, columns = logits.index_select(0, chosen[1]) if chosen else logits, self.changed()
        return adjusted(logits, columns) if columns else logits

    def mask(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Bits and lines."""
        mask = self.lines()
        return (mask[0], mask[1]) if mask else None

    def masked(self, logits: torch.Tensor) -> torch.Tensor:
        """[B, V], those of each draw, -inf where an id may not come."""
        chosen, mask = self.selected(), self.mask()
        if chosen and self.changed is None:
            logits = logits.index_select(0, chosen[1])
        return logits if mask is None else logits.masked_fill(~allowed(*mask, 0, logits.shape[-1]), float("-inf"))


def _values(readings: Sequence[PendingRead], tables: Sequence[torch.Tensor]) -> list[list[Values]]:
    """What each reading reads at each of its positions: the rows of its table [N, K] on the host."""
    return [
        [*table.numpy()] if reading.request.whole else [tuple(row) for row in table.double().tolist()]
        for reading, table in zip(readings, tables, strict=True)
    ]


def _of_columns(columns: list[torch.Tensor | None]) -> SampledTokens | None:
    """What columns on the host say was drawn; None where there are none."""
    if not columns:
        return None
    tokens, logprobs, near_ties, confidences, figures = columns
    assert tokens is not None and logprobs is not None and near_ties is not None
    return SampledTokens(tokens, logprobs, near_ties, confidences, figures)


def _on_host(draws: list[Draw], sampled: SampledTokens | None) -> HostTokens:
    """What was drawn, whose tensors are the host's; None where nothing was."""
    if sampled is None:
        return HostTokens([], [], [], [], [])
    logprobs = sampled.logprobs.tolist()
    measured, told = sampled.confidences, sampled.figures
    confidences = _confidences(draws, logprobs, None if measured is None else measured.tolist())
    figures = _figures(draws, None if told is None else told.tolist())
    return HostTokens(sampled.tokens.tolist(), logprobs, sampled.near_ties.tolist(), confidences, figures)


def _needs_logits(draw: Draw) -> bool:
    """Whether a draw looks at the logits of all ids: a filter compares them, p1 and an entropy are of all of them.

    So does one whose logits are changed: what screens ids, or reads those of a mask alone, goes by the model's own.
    """
    filtered = draw.params.filtered and not draw.params.greedy
    changed = draw.adjustment is not None or draw.contrast is not None or draw.rank is not None
    return draw.figures or draw.confidence in ("top", "entropy") or filtered or changed


def _with_rank(sampled: SampledTokens, logits: torch.Tensor, index: int, rank: int) -> SampledTokens:
    """With the id of a rank for one draw, by its masked logits [V]; of equal ones the first comes first."""
    values, order = logits.double().sort(descending=True, stable=True)
    rank = min(rank, len(values) - 1)
    apart = values[max(0, rank - 1) : rank + 2].diff().abs()
    sampled.tokens[index] = order[rank]
    sampled.logprobs[index] = (values[rank] - values.logsumexp(dim=-1)).float()
    sampled.near_ties[index] = (apart < NEAR_TIE_GAP).any()
    return sampled


def _measure(draw: Draw) -> int:
    """The place in `MEASURED` of what is asked of a draw; any where nothing there is."""
    return MEASURED.index(draw.confidence) if draw.confidence in MEASURED else 0


def _by_probability(draw: Draw) -> bool:
    """Whether the log-probability of what is drawn tells all that is asked of the model's confidence."""
    return draw.confidence in (None, "probability")


def _joined(first: SampledTokens, second: SampledTokens, places: torch.Tensor) -> torch.Tensor | None:
    """The confidences of both, by `places` in them; None where neither has any."""
    parts = [part.confidences for part in (first, second)]
    if all(part is None for part in parts):
        return None
    filled = [
        torch.full(sampled.tokens.shape, math.nan, dtype=torch.float64, device=places.device) if part is None else part
        for sampled, part in zip((first, second), parts, strict=True)
    ]
    return torch.cat(filled)[places]


def _figures(draws: list[Draw], told: list[Sequence[float]] | None) -> list[DrawFigures | None]:
    """What is told of each draw that asks for it."""
    if told is None:
        return [None] * len(draws)
    return [DrawFigures(*own) if draw.figures else None for draw, own in zip(draws, told, strict=True)]


def _confidences(draws: list[Draw], logprobs: list[float], measured: list[float] | None) -> list[float]:
    """The confidence in each token where its draw asks for it, else no number."""
    confidences = measured or [math.nan] * len(draws)
    for index, draw in enumerate(draws):
        if draw.confidence == "probability":
            confidences[index] = math.exp(logprobs[index])
    return confidences
