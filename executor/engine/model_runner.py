"""One model in the engine: its steps, and what they mean for the requests in them."""

from __future__ import annotations

import math
import time
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch

from qpdsl.executor.engine.batch.staging import working_on
from qpdsl.executor.engine.draft.drafters import Drafters
from qpdsl.executor.engine.exit.exit_steps import ExitOutcome, ExitSource, ExitSteps, FirstLayers
from qpdsl.executor.engine.feeding import Feeding
from qpdsl.executor.engine.launched_step import EndedSequence, LaunchedStep, Stopwatch
from qpdsl.executor.engine.memory.sequence import Chunk, Proposal, Sequence
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.scheduler import Scheduler
from qpdsl.executor.engine.step.adjustments import adjustment_of
from qpdsl.executor.engine.step.backends import ForwardOutput, GroupedBackend, StepBackend
from qpdsl.executor.engine.step.draws import Draw
from qpdsl.executor.engine.step.mask_filler import Filling, MaskFiller
from qpdsl.executor.engine.step.planned_reads import PendingRead
from qpdsl.executor.engine.step.readout import HostTokens, Pending, Results
from qpdsl.executor.engine.step.token_head import HeadDraws, PlainDraws
from qpdsl.executor.engine.step_report import StepSeconds
from qpdsl.executor.requests.drawing import FORCED, DrawFigures
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import Finish, GenerateRequest, Values, WatchAround, Writer
from qpdsl.executor.requests.ticket import Ticket

# After so many steps of others a model goes before one whose batch would be full.
_PATIENCE = 8
# After so many it goes before one whose sequences are more urgent.
_MAX_PASSED = 32
# By how much the fullest batch is forgotten at each step.
_FORGETTING = 0.02
# Nothing can be drawn or scored from NaN or infinity.
_NOT_FINITE = "the model's logits are not finite numbers; a wider dtype may help"
# Of a step that reads and draws nothing.
_NOTHING = Results(HostTokens([], [], [], [], []), [])


class _Drawn(NamedTuple):
    """A token for a sample, of how many ids that a mask allowed it was drawn, and how sure the model was of it.

    `confidence` is no number where nobody asked, and `figures` are None. `outcome`: see `Exited`.
    """

    token: int
    logprob: float
    near_tie: bool
    allowed: int | None
    confidence: float = math.nan
    figures: DrawFigures | None = None
    outcome: ExitOutcome | None = None


@dataclass(slots=True)
class ModelRunner:
    """A model with the scheduler of its sequences and the backend that runs its steps.

    `passed` counts the steps of other models since its last one, `peak` is the most sequences that were ready lately:
    by these, and by who waits, the engine chooses the model of a step. `spent` is where the time of its next step went
    until now. A step is launched, then collected; on a device, the host is free in between. `feeding` says which steps
    feed the next ones; None where none does.
    """

    name: str
    model: PagedModel
    backend: StepBackend
    scheduler: Scheduler
    filler: MaskFiller
    drafters: Drafters
    exits: ExitSteps
    feeding: Feeding | None = None
    passed: int = 0
    peak: float = 1.0
    spent: StepSeconds = field(default_factory=StepSeconds)
    plain: PlainDraws = field(default_factory=PlainDraws)

    @property
    def asynchronous(self) -> bool:
        """Whether a launched step goes on by itself, so that the host may do something else before it is collected."""
        return self.backend.readout.asynchronous

    @property
    def _draws_plainly(self) -> bool:
        """Whether a head draws, from hidden states in the order of the chunks."""
        return self.backend.readout.has_head and not isinstance(self.backend, GroupedBackend)

    def settled(self, request: GenerateRequest) -> GenerateRequest:
        """The request with all that its model decides about it. Raises EngineError where it cannot be served so."""
        request = self.exits.settled(self.name, request)
        return request if request.draft is None else replace(request, draft=self.drafters.prepare(request.draft))

    def order(self) -> tuple[bool, float, float, float]:
        """Of the models that have work, the one for which this is least runs first.

        That is one that was passed over too often; else the one with the most urgent sequence, or with the deadline
        that leaves least slack of those that press; and of models that are alike in this, as most are, the one whose
        next batch would be fullest against the fullest lately, with an allowance for how long it has waited. A model
        that waits for another's results gets a fuller batch if the other one runs first.
        """
        fullness = self.scheduler.ready / self.peak + self.passed / _PATIENCE
        return (self.passed < _MAX_PASSED, *self.scheduler.need, -fullness)

    def chosen(self) -> None:
        """Notes that the next step is this model's."""
        self.passed = 0
        self.peak = max(self.scheduler.ready, self.peak * (1 - _FORGETTING), 1.0)

    def schedule(self) -> list[Chunk]:
        """The chunks of the next step, with what is proposed."""
        start = time.perf_counter()
        self.drafters.propose(self.scheduler.running)
        self.spent.drafts += time.perf_counter() - start
        return self.scheduler.schedule()

    def fed_by(self, feeder: LaunchedStep) -> list[Chunk]:
        """The chunks of a step that one in flight can feed; none where that is to be collected first."""
        return [] if self.feeding is None else self.feeding.next(feeder)

    def settle(self, step: LaunchedStep) -> None:
        """See `Feeding`."""
        if self.feeding is not None:
            self.feeding.settle(step)

    def launch(self, chunks: list[Chunk], feeder: LaunchedStep | None = None) -> LaunchedStep:
        """Starts one forward over the chunks, and what is read off it. Requests that read all of theirs give way.

        `feeder`: the step in flight that draws the tokens of the chunks (see `feeding.py`).
        """
        step = LaunchedStep(chunks, time.perf_counter(), self.spent, feeder=feeder)
        self.spent = StepSeconds()
        with working_on(self.model.device):
            if self.feeding is not None and feeder is not None:
                with self.feeding.places(chunks):
                    draws = self.plain.of(chunks)
                    assert draws is not None
                    self._draw_plainly(step, self.feeding.forward(chunks, feeder), draws)
                return step
            if self._draws_plainly and (draws := self.plain.of(chunks)) is not None:
                output = self.backend.forward(chunks)
                if self.drafters.looking:
                    self._show(output)
                self.scheduler.advance(chunks)
                self._draw_plainly(step, output, draws)
                return step
            whole = [chunk for chunk in chunks if not chunk.deferring]
            leaves = {chunk.sequence.request.exit for chunk in whole if chunk.read_rows}
            exits = {leave.layer for leave in leaves if leave is not None and leave.layer is not None}
            with self.filler.begin(chunks, launches=self.asynchronous) as filling:
                output = ForwardOutput([], torch.empty(0), {})
                if whole:
                    output = self.backend.forward(whole, sorted(exits))
                if self.drafters.looking:
                    self._show(output)
                self.scheduler.advance(whole)
                parts = self.exits.first_layers([chunk for chunk in chunks if chunk.deferring])
                readings = self._readings(step, output)
                sources = self._list_draws(step, output, parts, filling)
                self._read_out(step, output, readings, sources, parts)
                self.exits.settle(parts)
            step.spent.masks += filling.waited
        return step

    def collect(self, step: LaunchedStep, gone: Collection[Ticket] = (), since: float = 0.0) -> None:
        """Gives a step's values and tokens to their sequences, and ends those that have all of theirs.

        Nothing is done for requests that are `gone`, which were given up after the launch. `since` is when the step
        before it was collected, on the clock of `time.perf_counter`.
        """
        results = self.wait(step)
        with working_on(self.model.device):
            self._take_values(step, results.values, gone)
            if step.plain is not None:
                self._take_plain(step, step.plain, results.tokens.of(step.rows), gone)
            if step.draws:
                self._take_tokens(step, results.tokens, gone)
        if gone:
            step.ended = [ended for ended in step.ended if ended.sequence.ticket not in gone]
        self.drafters.ran(step.chunks, time.perf_counter() - max(step.started, since))

    def wait(self, step: LaunchedStep) -> Results:
        """What a step reads and draws, once it is known. The only wait for the device."""
        return _NOTHING if step.pending is None else step.pending.wait()

    def _draw_plainly(self, step: LaunchedStep, output: ForwardOutput, draws: HeadDraws) -> None:
        """Starts the draws of samples that decode."""
        step.plain = self.plain.samples
        step.head = Stopwatch(self.model.device)
        step.pending = self.backend.readout.start_plain(output.hidden, draws)
        step.head.stop()

    def _show(self, output: ForwardOutput) -> None:
        """Gives drafters that look at them the hidden states of a forward, which the next one overwrites."""
        hidden, row = output.hidden.clone(), 0
        for chunk, rows in output.readers:
            self.drafters.saw(chunk, chunk.sequence.computed, hidden[row : row + rows])
            row += rows

    def _readings(self, step: LaunchedStep, output: ForwardOutput) -> list[PendingRead]:
        """What requests read of a forward. Those that have all of theirs then have no part in any later step."""
        readings: list[PendingRead] = []
        row = 0
        for chunk, rows in output.readers:
            sequence, request = chunk.sequence, chunk.sequence.request.reading
            if request is not None:
                done = len(sequence.values)
                readings.append(PendingRead(output.hidden[row : row + rows], request, done))
                step.reading.append((sequence, done + rows == len(request.positions)))
            row += rows
        for sequence, is_read in step.reading:
            if is_read:
                self.scheduler.finish(sequence)
        return readings

    def _list_draws(
        self, step: LaunchedStep, output: ForwardOutput, parts: list[FirstLayers], filling: Filling
    ) -> list[ExitSource | None]:
        """Lists the draws of every sample whose tokens are all computed; prompts are forked into their samples.

        Of those in `parts` the first layers are. After each proposed token one is drawn too. Returns where each reads
        at its exit.
        """
        masks = step.masks = filling.masks()
        sources: list[ExitSource | None] = []
        row = 0
        for chunk, count in output.readers:
            prompt = chunk.sequence
            row += count
            if prompt.generates and prompt.missing == 0:
                first = row - 1 - (0 if chunk.proposal is None else len(chunk.proposal.tokens))
                allowed = -1 if masks is None else masks.first.get(prompt, -1)
                samples = self._fork(step, prompt) if prompt.unforked else [prompt]
                for sample in samples:
                    step.drawing.append((sample, chunk.proposal))
                    own = self._draws(sample, chunk.proposal, first, allowed)
                    sources += [_source(output, draw) for draw in own]
                    step.draws += own
        for part in parts:
            for sample, row in part.draws:
                if sample.ticket.done:
                    continue
                step.drawing.append((sample, None))
                step.draws += self._draws(sample, None, row, -1 if masks is None else masks.first.get(sample, -1))
                sources.append(ExitSource(part.residual, row, sample))
        return sources

    def _read_out(
        self,
        step: LaunchedStep,
        output: ForwardOutput,
        readings: list[PendingRead],
        sources: list[ExitSource | None],
        parts: list[FirstLayers],
    ) -> None:
        """Starts to read and draw. What an exit decides is waited for at once: the next layers depend on it."""
        if not readings and not step.draws:
            return
        step.head = Stopwatch(self.model.device)
        readout, hidden = self.backend.readout, output.hidden if output.readers else None
        step.outcomes = [None] * len(step.draws)
        if self.asynchronous and not parts and all(source is None for source in sources):
            step.pending = readout.start(hidden, step.draws, step.masks, readings)
        else:
            values, tokens = readout.read(readings), _NOTHING.tokens
            if step.draws:
                tokens, step.outcomes = self.exits.sample(hidden, step.draws, sources, parts, step.masks)
                self._note_arm(step.drawing)
            results = Results(tokens, values)
            step.pending = Pending(lambda: results)
        step.head.stop()

    def _take_values(self, step: LaunchedStep, values: list[list[Values]], gone: Collection[Ticket]) -> None:
        """Gives the values read at their positions to the requests that read; a request with all of its is done."""
        for (sequence, is_read), own in zip(step.reading, values, strict=True):
            if sequence.ticket in gone:
                continue
            sequence.values.extend(own)
            if not all(map(_are_finite, own)):
                self._fail(sequence, _NOT_FINITE)
            elif is_read:
                step.ended.append(EndedSequence(sequence))

    def _take_tokens(self, step: LaunchedStep, drawn: HostTokens, gone: Collection[Ticket]) -> None:
        """Gives each sample what was drawn for it. The first that is not what was proposed ends what a step gives."""
        counts = None if step.masks is None else step.masks.counts.tolist()
        tokens = [
            _Drawn(
                *(token, logprob, near),
                None if counts is None or draw.allowed < 0 else counts[draw.allowed],
                confidence,
                figures,
                outcome,
            )
            for draw, outcome, token, logprob, near, confidence, figures in zip(
                step.draws, step.outcomes, *drawn, strict=True
            )
        ]
        now = time.perf_counter()
        first = 0
        for sample, proposal in step.drawing:
            last = first + 1 + (0 if proposal is None else len(proposal.tokens))
            if not sample.ticket.done and sample.ticket not in gone:
                self._check(step, sample, proposal, tokens[first:last])
                _note_wait(step, sample, now)
            first = last

    def _take_plain(
        self, step: LaunchedStep, samples: list[Sequence], drawn: HostTokens, gone: Collection[Ticket]
    ) -> None:
        """Gives each sample of a plain step its token: as `_take_tokens`, without all that nobody asked for."""
        now, most = time.perf_counter(), self.model.max_positions
        for sample, token, logprob, near in zip(samples, drawn.tokens, drawn.logprobs, drawn.near_ties, strict=True):
            if sample.ticket.done or sample.ticket in gone:
                continue
            sample.rounds += 1
            sample.draws += 1
            sample.proposal = None
            if not math.isfinite(logprob):
                self._fail(sample, _NOT_FINITE)
                continue
            sample.near_ties += near
            told = logprob if sample.generation.logprobs else 0.0
            sample.tokens.append(token)
            sample.logprob += told
            sample.logprobs.append(told)
            if (finish := _finish(sample, token, most)) is not None:
                self._end(step, sample, finish)
            _note_wait(step, sample, now)

    def _draws(self, sample: Sequence, proposal: Proposal | None, row: int, allowed: int) -> list[Draw]:
        """The draws of a sample from the rows of the hidden states from `row` on, with bits from row `allowed` on."""
        request = sample.generation
        params, key, drawn = request.sampling, request.keys[sample.index], request.drawn + sample.drawn
        leave = None if request.exit is None else self.exits.tried(sample)
        measure = None if request.confidence is None else request.confidence.by
        screened = not request.logprobs and leave is None and measure is None
        rest = (request.sparse, leave, request.route, measure, screened, request.figures)
        own = sample.tokens[sample.prompt_length :] if params.processors.adjusts else None
        paths: list[tuple[int, ...]] = [()] if proposal is None else [(), *proposal.paths]
        return [
            Draw(
                *(row + index, params, key, drawn + len(path), allowed + index if allowed >= 0 else -1, *rest),
                None if own is None else adjustment_of(request, (*own, *path)),
                request.contrast,
                None if request.rank is None or drawn or path else request.rank + sample.index,
            )
            for index, path in enumerate(paths)
        ]

    def _note_arm(self, drawing: list[tuple[Sequence, Proposal | None]]) -> None:
        """Counts for each sample how the head of this step was computed, where a router chose it."""
        routed = self.backend.readout.routed
        if routed is not None and routed.choice is not None:
            arm = routed.choice.arm
            for sample, _ in drawing:
                if sample.generation.route is not None:
                    sample.arms[arm] = sample.arms.get(arm, 0) + 1

    def _fork(self, step: LaunchedStep, prompt: Sequence) -> list[Sequence]:
        """The samples of a prompt that go on, with the tokens that surely begin each."""
        ahead = prompt.tokens[prompt.prompt_length :]
        samples = self.scheduler.fork(prompt)
        self.drafters.forked(prompt, samples)
        going: list[Sequence] = []
        for sample in samples:
            del sample.tokens[sample.prompt_length :]
            if all(self._append_forced(step, sample, token) for token in ahead):
                going.append(sample)
            else:
                _note_wait(step, sample, time.perf_counter())
        return going

    def _check(self, step: LaunchedStep, sample: Sequence, proposal: Proposal | None, drawn: list[_Drawn]) -> None:
        """A sample gets what was drawn after its tokens, and after those of the proposal while it was right."""
        sample.rounds += 1
        sample.proposal = None
        if proposal is not None:
            sample.drafted += len(proposal.tokens)
            self.drafters.checked(sample, proposal, _right(proposal, drawn))
        accepted = 0
        node: int | None = -1
        going = True
        while going and node is not None:
            sample.draws += 1
            if sample.generation.exit is not None:
                self.exits.note(sample, drawn[node + 1].outcome)
            token = drawn[node + 1].token
            node_after = None if proposal is None else proposal.child(node, token)
            sample.accepted += node_after is not None
            sample.rejected += node_after is None and proposal is not None and proposal.goes_on(node)
            outcome = drawn[node + 1].outcome
            left_early = outcome is not None and outcome.left
            writer: Writer | None = "drafted" if node_after is not None else "early" if left_early else None
            going = self._append(step, sample, drawn[node + 1], writer)
            if going and node_after is not None:
                self.scheduler.memory.accept(sample, node_after - accepted)
                accepted += 1
            node = node_after
        if going and sample.mask is not None and sample.generation.jump:
            for token in sample.mask.forced():
                if not self._append_forced(step, sample, token):
                    break

    def _append_forced(self, step: LaunchedStep, sequence: Sequence, token: int) -> bool:
        """Appends a token that alone could follow; False where it ends the sample."""
        sequence.forced += 1
        return self._append(step, sequence, _Drawn(token, 0.0, False, None, figures=FORCED), "forced")

    def _append(self, step: LaunchedStep, sequence: Sequence, drawn: _Drawn, writer: Writer | None = None) -> bool:
        """A sample gets its next token, which `writer` wrote; False where that ends it."""
        if sequence.mask is not None and sequence.mask.error is not None:
            self._fail(sequence, f"the output cannot be held to its constraint: {sequence.mask.error}")
            return False
        if not math.isfinite(drawn.logprob):
            self._fail(sequence, _NOT_FINITE)
            return False
        sequence.near_ties += drawn.near_tie
        if not _stands(sequence, drawn):
            self._end(step, sequence, "unsure")
            return False
        if writer is not None:
            sequence.written.append((sequence.drawn, writer))
        sequence.tokens.append(drawn.token)
        logprob = drawn.logprob if sequence.generation.logprobs else 0.0
        sequence.logprob += logprob
        sequence.logprobs.append(logprob)
        if sequence.generation.figures and drawn.figures is not None:
            sequence.figures.append(drawn.figures)
        if drawn.allowed is not None:
            sequence.allowed.append(drawn.allowed)
        finish = _finish(sequence, drawn.token, self.model.max_positions)
        if finish != "eos" and _falls(sequence, drawn):
            finish = "until"
        if finish is not None:
            self._end(step, sequence, finish)
        return finish is None

    def _end(self, step: LaunchedStep, sequence: Sequence, finish: Finish) -> None:
        sequence.computed = min(sequence.computed, len(sequence.tokens))
        if (leave := sequence.request.exit) is not None and leave.layer is not None:
            sequence.skipped += sequence.late * (self.model.depth - leave.layer)
        self.scheduler.finish(sequence)
        step.ended.append(EndedSequence(sequence, finish))

    def _fail(self, sequence: Sequence, reason: str) -> None:
        sequence.ticket.fail(EngineError(reason))
        self.scheduler.cancel(sequence.ticket)


def _note_wait(step: LaunchedStep, sample: Sequence, now: float) -> None:
    """Notes how long a sample has waited for what it got in this step; of one that runs ahead nothing is noted."""
    tokens = sample.drawn - sample.told
    if tokens > 0:
        if sample.rank.priority == 0:
            step.waits.note(now - sample.since, tokens, first=sample.told + sample.generation.drawn == 0)
        sample.told, sample.since = sample.drawn, now


def _are_finite(values: Values) -> bool:
    if isinstance(values, tuple):
        return all(map(math.isfinite, values))
    return bool(np.isfinite(values).all())


def _right(proposal: Proposal, drawn: list[_Drawn]) -> list[int]:
    """The numbers of the proposed tokens that are what was drawn, one after the other."""
    right: list[int] = []
    node = proposal.child(-1, drawn[0].token)
    while node is not None:
        right.append(node)
        node = proposal.child(node, drawn[node + 1].token)
    return right


def _source(output: ForwardOutput, draw: Draw) -> ExitSource | None:
    """Where a draw from a forward of all layers would read at its exit."""
    if draw.exit is None or draw.exit.layer is None:
        return None
    return ExitSource(output.states[draw.exit.layer], draw.row)


def _stands(sequence: Sequence, drawn: _Drawn) -> bool:
    """Whether the model was sure enough of a token. Of one that alone could come there is nothing to ask."""
    wanted = sequence.confidence
    if wanted is None or math.isnan(drawn.confidence) or drawn.allowed == 1:
        return True
    sequence.near_ties += wanted.near(drawn.confidence)
    sequence.confidence = wanted.after(drawn.confidence)
    return wanted.holds(drawn.confidence)


def _falls(sequence: Sequence, drawn: _Drawn) -> bool:
    """Whether the confidence of a sample falls under its floor with this token."""
    floor = sequence.generation.floor
    if floor is None or sequence.window is None or drawn.figures is None:
        return False
    mean = sequence.window.push(drawn.figures.confidence)
    if mean is None:
        return False
    sequence.near_ties += floor.near(mean)
    return floor.ends(mean)


def _finish(sequence: Sequence, token: int, max_positions: int) -> Finish | None:
    """Why a sample ends with this token; None where it does not."""
    request = sequence.generation
    if token in request.eos:
        return "eos"
    matched = sequence.mask is not None and sequence.mask.push(token)
    if isinstance(sequence.watch, WatchAround):
        sequence.watch.logprob = sequence.logprob
    stopped = sequence.watch is not None and sequence.watch.push(token)
    if matched or stopped:
        return "match" if matched else "stop"
    length = len(sequence.tokens)
    if length - sequence.prompt_length == request.max_tokens or length == max_positions:
        return "length"
    return None
