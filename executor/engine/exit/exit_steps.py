"""The part of a step that early exits take: first layers, draws from them, and the layers that were put off.

Hidden states for the model's own head, of rows that leave it after some layer.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from collections.abc import Sequence as Several
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch.nn.functional import linear, pad

from qpdsl.executor.engine.batch.kernel_batch import in_rows
from qpdsl.executor.engine.exit.exit_router import DrawCosts, ExitRouter, ExpectedExits, Seen
from qpdsl.executor.engine.exit.leaving import Leaving, leave, refined
from qpdsl.executor.engine.memory.residuals import Residuals
from qpdsl.executor.engine.memory.sequence import Chunk, Sequence
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.step.backends import Hidden, NativeBackend, StepBackend
from qpdsl.executor.engine.step.draws import Draw, Masks
from qpdsl.executor.engine.step.readout import HostTokens
from qpdsl.executor.kernels.data.weights import FloatWeight
from qpdsl.executor.kernels.linear import PADDED_ROWS, PackedLinear
from qpdsl.executor.requests.drawing import DrawFigures
from qpdsl.executor.requests.early_exit import EarlyExit
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import GenerateRequest
from qpdsl.executor.requests.routing import ExitArm
from qpdsl.executor.requests.shadow import shadowed


class ExitWeights(Protocol):
    """An exit head: h + h @ weight.T + bias is what the last norm is given of rows h that leave after `layer` layers.

    `weight` float32 [d, d], `bias` float32 [d] (tuned lens: Belrose et al., 2023).
    """

    @property
    def layer(self) -> int: ...

    @property
    def weight(self) -> torch.Tensor: ...

    @property
    def bias(self) -> torch.Tensor: ...


class ExitCurve(Protocol):
    """What was measured of an exit head: by margin, the share of draws that leave and that of draws that change.

    `leave`: what a draw costs that leaves, in shares of a full one; `refine`: what another costs on top of it.
    """

    @property
    def leave(self) -> float: ...

    @property
    def refine(self) -> float: ...

    def at(self, margin: float) -> tuple[float, float]: ...


class ExitHeads:
    """The exit heads that an engine has, by name and layer. Of a name, the first that came is the usual one."""

    def __init__(self) -> None:
        self._heads: dict[str, dict[int, _Shift]] = {}
        self._curves: dict[tuple[str, int], ExitCurve] = {}

    def add(self, name: str, head: ExitWeights, curve: ExitCurve | None = None) -> None:
        """Adds a head, or takes it for another of its name and layer."""
        self._heads.setdefault(name, {})[head.layer] = _Shift(head)
        if curve is not None:
            self._curves[name, head.layer] = curve

    def expected(self, model: PagedModel, leave: EarlyExit) -> ExpectedExits:
        """What is expected of a settled exit: what was measured of its head, else that half of the draws leave."""
        assert leave.layer is not None
        curve = None if leave.head is None else self._curves.get((leave.head, leave.layer))
        if curve is not None:
            return ExpectedExits(*curve.at(leave.margin), curve.leave, curve.refine)
        first = leave.layer / model.depth
        return ExpectedExits(0.5, 0.0, first, 1 - first)

    def settled(self, name: str, model: PagedModel, request: GenerateRequest) -> GenerateRequest:
        """A request with an exit that says its layer, and defers only where the model and its draft let it.

        Raises EngineError where the model, which is called `name`, cannot be left so.
        """
        leave = request.exit
        if leave is None:
            return request
        layer = self.layer(name, model, leave)
        if layer >= model.depth:
            raise EngineError(f"{name} cannot be left after layer {layer}: it has {model.depth} layers")
        if leave.certify is not None and request.sampling.filtered and not request.sampling.greedy:
            raise EngineError("no early exit is certified beside top-k, top-p or min-p: what these cut is not known")
        if leave.certify is not None and request.sampling.processors.adjusts:
            raise EngineError("no early exit is certified beside penalties and biases, which scale what it goes by")
        if request.confidence is not None:
            raise EngineError("a token that may leave early has no confidence to end a sample by")
        if leave.route is not None and request.draft is not None:
            raise EngineError("a sample with drafts has no router for its early exit: all layers check its drafts")
        deferred = leave.deferred and model.runs_in_part and request.draft is None
        return replace(request, exit=replace(leave, layer=layer, deferred=deferred))

    def layer(self, name: str, model: PagedModel, leave: EarlyExit) -> int:
        """The layer of an exit from the model, which is called `name`. Raises EngineError where its head is none."""
        layer = leave.layer
        if leave.head is not None:
            own = self._of(name, leave.head)
            layer = next(iter(own)) if layer is None else layer
            if layer not in own:
                there = ", ".join(map(str, sorted(own)))
                raise EngineError(f"{leave.head} has no exit head for layer {layer}, but for: {there}")
            if (width := own[layer].width) != (wanted := model.head_inputs):
                reason = f"its hidden states are {width} wide, not {wanted}"
                raise EngineError(f"{leave.head} is no exit head for {name}: {reason}")
        return model.exit_layer if layer is None else layer

    def first_layers(self, name: str, model: PagedModel, head: str | None) -> tuple[int, Hidden | None]:
        """See `Exits`."""
        leave = EarlyExit(head=head)
        layer = self.layer(name, model, leave)
        hidden_of = None if head is None else partial(self.hidden, model, replace(leave, layer=layer))
        return layer, hidden_of

    def hidden(self, model: PagedModel, leave: EarlyExit, residual: torch.Tensor) -> torch.Tensor:
        """Hidden states [N, d] for the model's head, of rows [N, d] after the layer of a settled exit.

        No row depends on another.
        """
        if leave.head is not None:
            assert leave.layer is not None
            residual = self._heads[leave.head][leave.layer](residual)
        return model.leaving(residual)

    def _of(self, name: str, head: str) -> dict[int, _Shift]:
        if head not in self._heads:
            raise EngineError(f"{name} is to be left early by {head}, and there is no such exit head")
        return self._heads[head]


class _Shift:
    """The map of one head. On a CPU it is laid out for compiled code."""

    def __init__(self, head: ExitWeights) -> None:
        self.width = head.bias.shape[0]
        self._head = head
        self._packed: PackedLinear | None = None
        self._there: tuple[torch.Tensor, torch.Tensor] | None = None

    def __call__(self, residual: torch.Tensor) -> torch.Tensor:
        """h + h @ weight.T + bias of rows h [N, d], in their own type."""
        rows = residual.float()
        if residual.device.type == "cpu":
            if self._packed is None:
                self._packed = PackedLinear(FloatWeight(self._head.weight.float()), self._head.bias.float())
            moved: torch.Tensor = self._packed(rows)
        else:
            if self._there is None:
                self._there = self._head.weight.to(rows), self._head.bias.to(rows)
            count = len(rows)
            moved = linear(pad(rows, (0, 0, 0, max(0, PADDED_ROWS - count))), *self._there)[:count]
        return (rows + moved).to(residual.dtype)


# The late tokens that a sample may have at the most; see the guide of this folder.
MAX_LATE = 512


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


class ExitSource(NamedTuple):
    """Where a draw with an exit reads: a row of `residual` [T, d] after its layer.

    `sample`: whose later layers did not run, None where they did.
    """

    residual: torch.Tensor
    row: int
    sample: Sequence | None = None


class ExitOutcome(NamedTuple):
    """What came of a draw that tried its exit by an `arm`: whether it `left` there, and the margin.

    `same`: whether the full model draws the same token, None where it was not asked to.
    """

    left: bool
    margin: float
    same: bool | None
    arm: ExitArm


class Exited(NamedTuple):
    """Tokens, and of each what came of its exit; None where its draw tried none."""

    drawn: HostTokens
    outcomes: list[ExitOutcome | None]


@dataclass(slots=True)
class LearnedExits:
    """The routers of a model's exits, by these, however they are carried out.

    `states` are what earlier runs learned, by what an exit is called; a router begins with it.
    """

    routers: dict[EarlyExit, ExitRouter] = field(default_factory=dict)
    states: Mapping[str, object] = field(default_factory=dict)


class ExitSteps:
    """Serves the requests of one model that may leave it early. One forward has `token_budget` tokens at the most."""

    def __init__(
        self,
        model: PagedModel,
        backend: StepBackend,
        heads: ExitHeads,
        token_budget: int,
        residuals: Residuals,
        learned: LearnedExits,
    ) -> None:
        self._model = model
        self._backend = backend
        self._heads = heads
        self._budget = token_budget
        self._most_late = min(MAX_LATE, token_budget)
        self._residuals = residuals
        self.costs = DrawCosts()
        self.learned = learned

    def router(self, leave: EarlyExit) -> ExitRouter | None:
        """The router of all draws with this settled exit, however it is carried out; None where nobody routes them."""
        if leave.route is None:
            return None
        alike, learned = replace(leave, deferred=False, shadow=0.0), self.learned
        if alike not in learned.routers:
            expected, reranks = self._heads.expected(self._model, leave), leave.rerank is not None
            router = learned.routers[alike] = ExitRouter(leave.route, expected, reranks=reranks)
            if (state := learned.states.get(str(leave))) is not None:
                router.restore(state)
        return learned.routers[alike]

    @property
    def routers(self) -> dict[EarlyExit, ExitRouter]:
        """By their exits."""
        return self.learned.routers

    def settled(self, name: str, request: GenerateRequest) -> GenerateRequest:
        """See `ExitHeads`."""
        return self._heads.settled(name, self._model, request)

    def tried(self, sample: Sequence) -> EarlyExit | None:
        """The exit that the next draw of a sample tries, None for none."""
        leave = sample.generation.exit
        router = None if leave is None else self.router(leave)
        if router is None:
            return leave
        assert leave is not None
        started = time.perf_counter()
        arm = router.arm(self._seen(sample))
        router.spent += time.perf_counter() - started
        return None if arm == "full" else leave if arm == "rerank" else _by_all_ids(leave)

    def note(self, sample: Sequence, outcome: ExitOutcome | None) -> None:
        """Counts what came of a draw of a sample whose request has an exit, before its token is appended."""
        leave = sample.generation.exit
        router = None if leave is None else self.router(leave)
        if router is not None:
            arm, left, same = ("full", False, None) if outcome is None else (outcome.arm, outcome.left, outcome.same)
            router.note(self._seen(sample), arm, left, same)
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
        sources: list[ExitSource | None],
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
        among = [index in at_exit and at_exit[index].best is not None for index in going] + [False] * len(shadows)
        every = self._drawn(last if len(last) else hidden, final + full[len(going) :], masks, among)
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
        outcomes = {
            index: ExitOutcome(own.stands, own.margin, same.get(index), _arm(draws[index]))
            for index, own in at_exit.items()
        }
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
        self, hidden: torch.Tensor | None, draws: list[Draw], masks: Masks | None, among: list[bool]
    ) -> list[tuple[int, float, bool, float, DrawFigures | None]]:
        """Token, log-probability, near tie, confidence and figures of each draw after the last layer.

        `among`: whether it chooses among the best ids of its exit.
        """
        if not draws:
            return []
        assert hidden is not None
        started = time.perf_counter()
        drawn = self._backend.readout.sample(hidden, draws, masks)
        # What one kind takes is not told by a head that draws both.
        if len(set(among)) == 1:
            costs = self.costs.reranked if among[0] else self.costs.head
            costs.add(time.perf_counter() - started, len(draws))
        return list(zip(*drawn, strict=True))

    def _seen(self, sample: Sequence) -> Seen:
        """What a router sees of the next draw of a sample: where it stands, and what came of the draws before it."""
        request = sample.generation
        allowed = sample.allowed[-1] / self._model.vocabulary if sample.allowed else 1.0
        place = request.drawn + sample.drawn
        return Seen(request.keys[sample.index], place, sample.last_exit, allowed, len(sample.tokens))

    @staticmethod
    def _after_all_layers(draw: Draw, source: ExitSource | None, rows: dict[Sequence, int]) -> Draw:
        """The draw from the last hidden state of its sample; `rows` says where those lie that have just come."""
        own = None if source is None else source.sample
        return draw if own is None else draw._replace(row=rows[own])

    @property
    def _native(self) -> NativeBackend:
        assert isinstance(self._backend, NativeBackend)
        return self._backend

    def _leave(self, draws: list[Draw], sources: list[ExitSource | None], masks: Masks | None) -> list[Leaving]:
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


def _arm(draw: Draw) -> ExitArm:
    return "exit" if draw.exit is None or draw.exit.rerank is None else "rerank"


@cache
def _by_all_ids(leave: EarlyExit) -> EarlyExit:
    """The same without reranking."""
    return replace(leave, rerank=None)


def _layer(sequence: Sequence) -> int:
    leave_at = sequence.request.exit
    assert leave_at is not None and leave_at.layer is not None
    return leave_at.layer
