"""The part of a step that early exits take: first layers, draws from them, and the layers that were put off."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from collections.abc import Sequence as Several
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from qpdsl.executor.engine.batch.step_rows import in_rows
from qpdsl.executor.engine.exit.exit_router import DrawCosts, ExitRouter, Seen
from qpdsl.executor.engine.exit.exit_states import ExitHeads
from qpdsl.executor.engine.exit.leaving import Leaving, leave, refined
from qpdsl.executor.engine.memory.residuals import Residuals
from qpdsl.executor.engine.memory.sequence import Chunk, Sequence
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.step.backends import Backend, NativeBackend
from qpdsl.executor.engine.step.draws import Draw, Masks
from qpdsl.executor.engine.step.readout import HostTokens
from qpdsl.executor.requests.draw_figures import DrawFigures
from qpdsl.executor.requests.early_exit import EarlyExit
from qpdsl.executor.requests.shadow import shadowed

# The late tokens that a sample may have at the most; see the guide of this folder.
MOST_LATE = 512


@dataclass(eq=False, slots=True)
class FirstLayers:
    """Chunks of which the layers up to `layer` ran alone.

    `residual` float32 [T, d] is that of their rows after these, chunk by chunk. `waiting`: until what becomes of it is
    settled.
    """

    layer: int
    chunks: list[Chunk]
    residual: torch.Tensor
    waiting: bool = True

    @property
    def draws(self) -> list[tuple[Sequence, int]]:
        """The samples of which a token is drawn, each with the row that it is drawn from."""
        found: list[tuple[Sequence, int]] = []
        row = 0
        for chunk in self.chunks:
            row += chunk.count
            if chunk.read_rows:
                found.append((chunk.sequence, row - 1))
        return found


class Source(NamedTuple):
    """Where a draw with an exit reads: a row of `residual` [T, d] after its layer.

    `sample`: whose later layers did not run, None where they did.
    """

    residual: torch.Tensor
    row: int
    sample: Sequence | None = None


class Outcome(NamedTuple):
    """What came of a draw that tried its exit: whether it `left` there, and the margin.

    `same`: whether the full model draws the same token, None where it was not asked to.
    """

    left: bool
    margin: float
    same: bool | None


class Exited(NamedTuple):
    """Tokens, and of each what came of its exit; None where its draw tried none."""

    drawn: HostTokens
    outcomes: list[Outcome | None]


class ExitSteps:
    """Serves the requests of one model that may leave it early. One forward has `token_budget` tokens at the most."""

    def __init__(
        self, model: PagedModel, backend: Backend, heads: ExitHeads, token_budget: int, residuals: Residuals
    ) -> None:
        self._model = model
        self._backend = backend
        self._heads = heads
        self._budget = token_budget
        self._most_late = min(MOST_LATE, token_budget)
        self._residuals = residuals
        self.costs = DrawCosts()
        self.routers: dict[EarlyExit, ExitRouter] = {}
        """By their exits, however these are carried out."""
        self.states: Mapping[str, object] = {}
        """What earlier runs learned, by what an exit says; a router begins with it."""

    def router(self, leave: EarlyExit) -> ExitRouter | None:
        """The router of all draws with this settled exit, however it is carried out; None where nobody routes them."""
        if leave.route is None:
            return None
        alike = replace(leave, deferred=False, shadow=0.0)
        if alike not in self.routers:
            router = self.routers[alike] = ExitRouter(leave.route, self._heads.expected(self._model, leave))
            if (state := self.states.get(str(leave))) is not None:
                router.restore(state)
        return self.routers[alike]

    def tried(self, sample: Sequence) -> EarlyExit | None:
        """The exit that the next draw of a sample tries, None for none."""
        leave = sample.generation.exit
        router = None if leave is None else self.router(leave)
        if router is None:
            return leave
        return leave if router.tries(self._seen(sample)) else None

    def note(self, sample: Sequence, outcome: Outcome | None) -> None:
        """Counts what came of a draw of a sample whose request has an exit, before its token is appended."""
        leave = sample.generation.exit
        router = None if leave is None else self.router(leave)
        if router is not None:
            left, same = (None, None) if outcome is None else (outcome.left, outcome.same)
            router.note(self._seen(sample), left, same)
        if outcome is None:
            sample.full += 1
            return
        sample.exits += outcome.left
        sample.refined += not outcome.left
        sample.shadowed += outcome.same is not None
        sample.differed += outcome.same is False
        sample.last_exit = outcome.margin, outcome.left

    def first_layers(self, chunks: Several[Chunk]) -> list[FirstLayers]:
        """Runs the first layers of chunks that are `deferring`: one forward for each layer to leave after."""
        by_layer: dict[int, list[Chunk]] = {}
        for chunk in chunks:
            by_layer.setdefault(_layer(chunk.sequence), []).append(chunk)
        parts: list[FirstLayers] = []
        for layer, own in by_layer.items():
            ordered = in_rows(own)
            started = time.perf_counter()
            residual, _ = self._native.run_layers(ordered, None, 0, layer)
            self.costs.first.add(time.perf_counter() - started, len(ordered))
            parts.append(FirstLayers(layer, ordered, residual))
        return parts

    def sample(
        self,
        hidden: torch.Tensor | None,
        draws: list[Draw],
        sources: list[Source | None],
        parts: list[FirstLayers],
        masks: Masks | None,
    ) -> Exited:
        """One token for each draw, and what follows for the residuals of `parts`: they wait, or their layers run now.

        `hidden` [W, d]: what draws read that have no source, or whose source has run all layers. Of `sources` there is
        one for each draw, None where it has no exit.
        """
        leaving = [index for index, draw in enumerate(draws) if draw.exit is not None]
        leavings = self._leave([draws[index] for index in leaving], [sources[index] for index in leaving], masks)
        at_exit = dict(zip(leaving, leavings, strict=True))
        going = [index for index in range(len(draws)) if index not in at_exit or not at_exit[index].stands]
        shadows = [index for index, found in at_exit.items() if _is_shadowed(draws[index], found)]
        refining = [source.sample for index in going + shadows if (source := sources[index]) and source.sample]
        last, rows = self.settle(parts, refining)
        if hidden is not None and len(last):
            rows = {sample: row + len(hidden) for sample, row in rows.items()}
            last = torch.cat((hidden, last))
        full = [self._after_all_layers(draws[index], sources[index], rows) for index in going + shadows]
        stay = Leaving(0, 0.0, False, False)
        final, masks = refined(full[: len(going)], [at_exit.get(index, stay) for index in going], masks)
        # What the full model draws depends on no exit, not even on the ids that one would have it choose among.
        every = self._drawn(last if len(last) else hidden, final + full[len(going) :], masks)
        drawn, of_shadows = iter(every[: len(going)]), dict(zip(shadows, every[len(going) :], strict=True))
        columns: list[tuple[int, float, bool, float, DrawFigures | None]] = []
        for index in range(len(draws)):
            found = at_exit.get(index)
            if found is not None and found.stands:
                columns.append((found.token, found.logprob, found.near_tie, float("nan"), None))
            else:
                token, logprob, near_tie, confidence, figures = next(drawn)
                near_tie = near_tie or (found is not None and found.near_tie)
                columns.append((token, logprob, near_tie, confidence, figures))
        tokens = HostTokens(*(list(column) for column in zip(*columns, strict=True)))
        same = {index: own[0] == tokens.tokens[index] for index, own in of_shadows.items()}
        outcomes = {index: Outcome(own.stands, own.margin, same.get(index)) for index, own in at_exit.items()}
        return Exited(tokens, [outcomes.get(index) for index in range(len(draws))])

    def settle(
        self, parts: list[FirstLayers], refining: Collection[Sequence] = ()
    ) -> tuple[torch.Tensor, dict[Sequence, int]]:
        """Puts the later layers of `parts` off, or runs them, with what was put off before.

        They run for the samples that are `refining`, and for those with as many late tokens as may be, or as memory
        holds. Returns the last hidden states [n, d] of the former, and the row of each.
        """
        found: list[torch.Tensor] = []
        rows: dict[Sequence, int] = {}
        wanted = set(refining)
        for part in parts:
            if not part.waiting:
                continue
            part.waiting = False
            residual = part.residual.numpy()
            due: list[Sequence] = []
            row = 0
            for chunk in part.chunks:
                sequence, own = chunk.sequence, residual[row : row + chunk.count]
                row += chunk.count
                if sequence.ticket.done:
                    continue
                before = sequence.late
                if sequence in wanted:
                    sequence.defer(own.copy())
                    due.append(sequence)
                    sequence.caught_up += before
                elif not self._residuals.keep(sequence, own) or sequence.late >= self._most_late:
                    due.append(sequence)
                    sequence.caught_up += sequence.late
            for sequence, last in self._last_layers(part.layer, due):
                if sequence in wanted:
                    rows[sequence] = len(found)
                    found.append(last)
        return torch.stack(found) if found else torch.empty(0), rows

    def _drawn(
        self, hidden: torch.Tensor | None, draws: list[Draw], masks: Masks | None
    ) -> list[tuple[int, float, bool, float, DrawFigures | None]]:
        """Token, log-probability, near tie, confidence and figures of each draw after the last layer."""
        if not draws:
            return []
        assert hidden is not None
        started = time.perf_counter()
        drawn = self._backend.readout.sample(hidden, draws, masks)
        self.costs.head.add(time.perf_counter() - started, len(draws))
        return list(zip(*drawn, strict=True))

    def _seen(self, sample: Sequence) -> Seen:
        """What a router sees of the next draw of a sample: where it stands, and what came of the draws before it."""
        request = sample.generation
        allowed = sample.allowed[-1] / self._model.vocabulary if sample.allowed else 1.0
        return Seen(request.keys[sample.index], request.drawn + sample.drawn, sample.last_exit, allowed)

    @staticmethod
    def _after_all_layers(draw: Draw, source: Source | None, rows: dict[Sequence, int]) -> Draw:
        """The draw from the last hidden state of its sample; `rows` says where those lie that have just come."""
        own = None if source is None else source.sample
        return draw if own is None else draw._replace(row=rows[own])

    @property
    def _native(self) -> NativeBackend:
        assert isinstance(self._backend, NativeBackend)
        return self._backend

    def _leave(self, draws: list[Draw], sources: list[Source | None], masks: Masks | None) -> list[Leaving]:
        """What each draw comes to at its exit. Draws that read the same rows by the same head are read together."""
        started = time.perf_counter()
        groups: dict[tuple[int, str | None, int], list[int]] = {}
        for index, (draw, source) in enumerate(zip(draws, sources, strict=True)):
            assert draw.exit is not None and draw.exit.layer is not None and source is not None
            groups.setdefault((draw.exit.layer, draw.exit.head, id(source.residual)), []).append(index)
        hidden: list[torch.Tensor] = []
        placed: dict[int, Draw] = {}
        first = 0
        for members in groups.values():
            own = [source for index in members if (source := sources[index]) is not None]
            distinct = sorted({source.row for source in own})
            place = {row: first + number for number, row in enumerate(distinct)}
            exit_of = draws[members[0]].exit
            assert exit_of is not None
            residual = own[0].residual
            read = residual.index_select(0, torch.tensor(distinct, device=residual.device))
            hidden.append(self._heads.hidden(self._model, exit_of, read))
            for index, source in zip(members, own, strict=True):
                placed[index] = draws[index]._replace(row=place[source.row])
            first += len(distinct)
        if not hidden:
            return []
        read = torch.cat(hidden)
        leavings = leave(self._backend.readout, read, [placed[index] for index in range(len(draws))], masks)
        self.costs.exit.add(time.perf_counter() - started, len(draws))
        return leavings

    def _last_layers(self, layer: int, sequences: list[Sequence]) -> list[tuple[Sequence, torch.Tensor]]:
        """Runs the layers behind `layer` for all late tokens; with each sequence the last one's hidden state [d]."""
        found: list[tuple[Sequence, torch.Tensor]] = []
        piece: list[Chunk] = []
        rows = 0
        for sequence in sequences:
            if piece and rows + sequence.late > self._budget:
                found += self._run_last(layer, piece)
                piece, rows = [], 0
            piece.append(Chunk(sequence, sequence.late))
            rows += sequence.late
        return found + (self._run_last(layer, piece) if piece else [])

    def _run_last(self, layer: int, chunks: list[Chunk]) -> list[tuple[Sequence, torch.Tensor]]:
        ordered = in_rows(chunks)
        parts = [residual for chunk in ordered for residual in chunk.sequence.deferred]
        residual = torch.from_numpy(np.concatenate(parts))
        started = time.perf_counter()
        _, hidden = self._native.run_layers(ordered, residual, layer, self._model.depth)
        self.costs.rest.add(time.perf_counter() - started, len(ordered))
        found: list[tuple[Sequence, torch.Tensor]] = []
        row = 0
        for chunk in ordered:
            row += chunk.count
            found.append((chunk.sequence, hidden[row - 1]))
            chunk.sequence.computed += chunk.count
            chunk.sequence.forget_deferred()
        return found


def _is_shadowed(draw: Draw, found: Leaving) -> bool:
    """Whether the full model draws too what an exit has decided, be it by the ids that are left to choose among."""
    assert draw.exit is not None
    return (found.stands or found.best is not None) and shadowed(draw.key, draw.position, draw.exit.shadow)


def _layer(sequence: Sequence) -> int:
    leave_at = sequence.request.exit
    assert leave_at is not None and leave_at.layer is not None
    return leave_at.layer
