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

from qpdsl.executor.engine.batch.staging import Staging
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.step.draws import Draw, Masks
from qpdsl.executor.engine.step.routed_head import RoutedHead
from qpdsl.executor.engine.step.sampler import SampledTokens, Sampler
from qpdsl.executor.engine.step.token_head import HeadDraws, TokenHead
from qpdsl.executor.requests.draw_figures import LIKELIEST, DrawFigures
from qpdsl.executor.requests.request import LogProbRequest, ReadRequest, TreeRequest

# Dense logits of a long prompt would take gigabytes at once.
_ROWS_AT_ONCE = 64


class HostTokens(NamedTuple):
    """`SampledTokens` on the host, with the confidence in each token where its draw asks for it, else no number.

    `figures` are None for a draw that does not ask for them.
    """

    tokens: list[int]
    logprobs: list[float]
    near_ties: list[bool]
    confidences: list[float]
    figures: list[DrawFigures | None]


class Reading(NamedTuple):
    """Hidden states [N, d] at the next N positions of a request; `done` positions were read before."""

    hidden: torch.Tensor
    request: ReadRequest | LogProbRequest | TreeRequest
    done: int


class Results(NamedTuple):
    """`tokens`: one for each draw. `values`: for each reading, what it reads at each of its positions."""

    tokens: HostTokens
    values: list[list[tuple[float, ...]]]


class Pending:
    """What a readout comes to, which may still be under way on the device."""

    def __init__(self, results: Callable[[], Results]) -> None:
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
        self, hidden: torch.Tensor | None, draws: list[Draw], masks: Masks | None, readings: list[Reading]
    ) -> Pending:
        """Launches all that is read and drawn, and the copy back; it never waits for a device.

        `hidden` may be None where there are no draws. Several draws may read the same hidden state, and nobody asks
        whether one has an `exit`. What was passed may be overwritten before the results are waited for.
        """
        tables = [self._read(*reading) for reading in readings]
        sampled: SampledTokens | None = None
        if draws:
            assert hidden is not None
            if self.routed is not None:
                self.routed.arm = None
            sampled = self._sampled(hidden, draws, masks)
        if not self.asynchronous:
            results = Results(_on_host(draws, sampled), [_positions(table.double()) for table in tables])
            return Pending(lambda: results)
        parts: list[torch.Tensor | None] = [*tables, *(sampled or ())]
        # All of them are exact in double.
        sent = [part.double().flatten() for part in parts if part is not None]
        if not sent:
            return Pending(lambda: Results(_on_host([], None), []))
        fetch = self._staging.start_fetch(torch.cat(sent))
        shapes, sizes = [None if part is None else part.shape for part in parts], [part.numel() for part in sent]
        reads = len(tables)

        def finished() -> Results:
            flat = iter(torch.from_numpy(fetch.wait()).split(sizes))
            found = [None if shape is None else next(flat).view(shape) for shape in shapes]
            values = [_positions(table) for table in found[:reads] if table is not None]
            return Results(_on_host(draws, _sampled(found[reads:])), values)

        return Pending(finished)

    def sample(self, hidden: torch.Tensor, draws: list[Draw], masks: Masks | None) -> HostTokens:
        """One token for each draw; see `start`."""
        return self.start(hidden, draws, masks, []).wait().tokens

    def read(self, readings: list[Reading]) -> list[list[tuple[float, ...]]]:
        """For each reading, what it reads at each of its positions: the logits of its ids, or log-probabilities."""
        return self.start(None, [], None, readings).wait().values

    def with_margins(
        self, hidden: torch.Tensor, draws: list[Draw], masks: Masks | None
    ) -> tuple[SampledTokens, torch.Tensor] | None:
        """See `TokenHead`; None too where no head draws. For draws without filters."""
        return None if self._head is None else self._head.with_margins(hidden, HeadDraws.of(draws, masks))

    def masked_logits(self, hidden: torch.Tensor, draws: list[Draw], masks: Masks | None) -> torch.Tensor:
        """Logits float32 [B, V] of each draw, -inf for the ids that it may not take."""
        logits = self._logits_of(hidden, [draw.row for draw in draws])
        allowed = None if masks is None else self._allowed(draws, masks, logits.shape[-1])
        return logits if allowed is None else logits.masked_fill(~allowed, float("-inf"))

    def drawn(self, logits: torch.Tensor, draws: list[Draw]) -> SampledTokens:
        """A token for each draw from its masked logits [B, V]."""
        return self._sampler(
            logits, [draw.params for draw in draws], [draw.key for draw in draws], [draw.position for draw in draws]
        )

    def _sampled(self, hidden: torch.Tensor, draws: list[Draw], masks: Masks | None) -> SampledTokens:
        head = self._head
        if head is None:
            return self._by_logits(hidden, draws, masks)
        reading = [index for index, draw in enumerate(draws) if _needs_logits(draw)]
        if not reading:
            return self._by_head(head, hidden, draws, masks)
        if len(reading) == len(draws):
            return self._by_logits(hidden, draws, masks)
        others = sorted(set(range(len(draws))) - set(reading))
        drawn = self._by_head(head, hidden, [draws[index] for index in others], masks)
        read = self._by_logits(hidden, [draws[index] for index in reading], masks)
        # Where each draw lies after both are joined.
        (places,) = self._staging.send([np.argsort(np.array(others + reading))])
        return SampledTokens(
            torch.cat((drawn.tokens, read.tokens))[places],
            torch.cat((drawn.logprobs, read.logprobs))[places],
            torch.cat((drawn.near_ties, read.near_ties))[places],
            _joined(drawn, read, places),
            # Those that are told of are among those that are read.
            None
            if read.figures is None
            else torch.cat((read.figures.new_full((len(others), 3), math.nan), read.figures))[places],
        )

    def _by_head(self, head: TokenHead, hidden: torch.Tensor, draws: list[Draw], masks: Masks | None) -> SampledTokens:
        """Without logits of all ids, unless somebody asks for margins and the head does not tell them."""
        if all(map(_by_probability, draws)):
            return head(hidden, HeadDraws.of(draws, masks))
        told = head.with_margins(hidden, HeadDraws.of(draws, masks))
        if told is None:
            return self._by_logits(hidden, draws, masks)
        sampled, margins = told
        return sampled._replace(confidences=margins)

    def _by_logits(self, hidden: torch.Tensor, draws: list[Draw], masks: Masks | None) -> SampledTokens:
        logits = self.masked_logits(hidden, draws, masks)
        sampled = self.drawn(logits, draws)
        if any(draw.figures for draw in draws):
            sampled = sampled._replace(figures=_figures_of(logits))
        return sampled if all(map(_by_probability, draws)) else self._with_confidences(sampled, logits, draws)

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

    def _with_confidences(self, sampled: SampledTokens, logits: torch.Tensor, draws: list[Draw]) -> SampledTokens:
        """With the margin, or 1 - H / ln(ids), of draws that ask for it. Masked `logits` [B, V] are -inf."""
        # A sum alone is split among threads, where one of several has its own thread: it would have other bits.
        wide = logits.double().expand(max(2, len(logits)), -1)
        probabilities = wide.softmax(dim=-1)
        top = probabilities.topk(min(2, wide.shape[-1]), dim=-1).values
        margins = top[:, 0] - top[:, 1] if top.shape[-1] > 1 else top[:, 0]
        entropies = torch.special.entr(probabilities).sum(dim=-1)
        most = wide.isfinite().sum(dim=-1).clamp(min=2).double().log()
        (by_margin,) = self._staging.send([np.array([draw.confidence == "margin" for draw in draws])])
        count = len(draws)
        confidences = torch.where(by_margin, margins[:count], 1 - entropies[:count] / most[:count])
        return sampled._replace(confidences=confidences)


def _positions(table: torch.Tensor) -> list[tuple[float, ...]]:
    """The rows of a table float64 [N, K] on the host."""
    return [tuple(row) for row in table.tolist()]


def _sampled(columns: list[torch.Tensor | None]) -> SampledTokens | None:
    """What columns on the host say was drawn; None where there are none."""
    if not columns:
        return None
    tokens, logprobs, near_ties, confidences, figures = columns
    assert tokens is not None and logprobs is not None and near_ties is not None
    return SampledTokens(tokens.long(), logprobs, near_ties.bool(), confidences, figures)


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
    """Whether a draw looks at the logits of all ids.

    Filters sort them, and an entropy is of all of them.
    """
    return draw.figures or draw.confidence == "entropy" or (draw.params.filtered and not draw.params.greedy)


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


def _figures_of(logits: torch.Tensor) -> torch.Tensor:
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
