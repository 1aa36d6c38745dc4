"""One model in the engine: its steps, and what they mean for the requests in them."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import NamedTuple

from qpdsl.executor.engine.batch.staging import working_on
from qpdsl.executor.engine.draft.drafters import Drafters
from qpdsl.executor.engine.memory.proposal import Proposal
from qpdsl.executor.engine.memory.sequence import Chunk, Sequence
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.scheduler import Scheduler
from qpdsl.executor.engine.step.backends import Backend, ForwardOutput
from qpdsl.executor.engine.step.draws import Draw, Masks
from qpdsl.executor.engine.step.mask_filler import MaskFiller
from qpdsl.executor.engine.step.readout import Reading
from qpdsl.executor.engine.step.stopwatch import Stopwatch
from qpdsl.executor.engine.step_report import StepSeconds
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import Finish, GenerateRequest

# After so many steps of others a model goes before one whose batch would be full.
_PATIENCE = 8
# By how much the fullest batch is forgotten at each step.
_FORGETTING = 0.02
# Nothing can be drawn or scored from NaN or infinity.
_NOT_FINITE = "the model's logits are not finite numbers; a wider dtype may help"


class _Drawn(NamedTuple):
    """A token for a sample, and of how many ids that a mask allowed it was drawn."""

    token: int
    logprob: float
    near_tie: bool
    allowed: int | None


@dataclass(slots=True)
class ModelRunner:
    """A model with the scheduler of its sequences and the backend that runs its steps.

    `passed` counts the steps of other models since its last one, `peak` is the most sequences that were ready lately:
    by these the engine chooses the model of a step. `spent` is where the time of its next step went.
    """

    name: str
    model: PagedModel
    backend: Backend
    scheduler: Scheduler
    filler: MaskFiller
    drafters: Drafters
    passed: int = 0
    peak: float = 1.0
    spent: StepSeconds = field(default_factory=StepSeconds)

    def urgency(self) -> float:
        """How full its next batch would be against the fullest lately, and how long it has waited.

        A model that waits for another's results gets a fuller batch if the other one runs first.
        """
        return self.scheduler.ready / self.peak + self.passed / _PATIENCE

    def chosen(self) -> None:
        """Notes that the next step is this model's."""
        self.passed = 0
        self.peak = max(self.scheduler.ready, self.peak * (1 - _FORGETTING), 1.0)

    def run(self, chunks: list[Chunk]) -> None:
        """One forward over the chunks, and what is read off it: values, tokens, samples that end."""
        start = time.perf_counter()
        with working_on(self.model.device):
            early_exit = any(chunk.sequence.request.exit_margin is not None for chunk in chunks)
            with self.filler.begin(chunks) as filling:
                output = self.backend.forward(chunks, early_exit)
                if self.drafters.looking:
                    self._show(output)
                self.scheduler.advance(chunks)
                self.resolve_reads(output)
                self.resolve_draws(output, filling.masks())
            self.spent.masks += filling.waited
        self.drafters.ran(chunks, time.perf_counter() - start)

    def _show(self, output: ForwardOutput) -> None:
        """Gives drafters that look at them the hidden states of a forward."""
        row = 0
        for chunk, rows in output.readers:
            self.drafters.saw(chunk, chunk.sequence.computed, output.hidden[row : row + rows])
            row += rows

    def resolve_reads(self, output: ForwardOutput) -> None:
        """Gives the values read at their positions to the requests that read; a request with all of its is done."""
        readings: list[Reading] = []
        sequences: list[Sequence] = []
        row = 0
        for chunk, rows in output.readers:
            sequence, request = chunk.sequence, chunk.sequence.request
            if not isinstance(request, GenerateRequest):
                readings.append(Reading(output.hidden[row : row + rows], request, len(sequence.values)))
                sequences.append(sequence)
            row += rows
        if not readings:
            return
        watch = Stopwatch(self.model.device)
        read = self.backend.readout.read(readings)
        self.spent.head += watch.seconds()
        for sequence, values in zip(sequences, read, strict=True):
            sequence.values.extend(values)
            if not all(math.isfinite(value) for position in values for value in position):
                self._fail(sequence, _NOT_FINITE)
            elif len(sequence.values) == len(sequence.request.positions):
                self.scheduler.finish(sequence)
                sequence.ticket.finish_read(sequence.values, sequence.cached)

    def resolve_draws(self, output: ForwardOutput, masks: Masks | None) -> None:
        """Draws the next tokens of every sample whose tokens are all computed; prompts are forked into their samples.

        After each proposed token one is drawn too. The first that is not what was proposed ends what a step gives.
        """
        draws: list[Draw] = []
        drawing: list[tuple[Sequence, Proposal | None]] = []
        row = 0
        for chunk, count in output.readers:
            prompt = chunk.sequence
            row += count
            if prompt.generates and prompt.missing == 0:
                first = row - 1 - (0 if chunk.proposal is None else len(chunk.proposal.tokens))
                allowed = -1 if masks is None else masks.first.get(prompt, -1)
                samples = self._fork(prompt) if prompt.unforked else [prompt]
                for sample in samples:
                    drawing.append((sample, chunk.proposal))
                    draws += _draws(sample, chunk.proposal, first, allowed)
        if not draws:
            return
        watch = Stopwatch(self.model.device)
        drawn = self.backend.readout.sample(output.hidden, output.exit_hidden, draws, masks)
        self.spent.head += watch.seconds()
        counts = None if masks is None else masks.counts.tolist()
        tokens = [
            _Drawn(token, logprob, near_tie, None if counts is None or draw.allowed < 0 else counts[draw.allowed])
            for draw, token, logprob, near_tie in zip(draws, *drawn, strict=True)
        ]
        first = 0
        for sample, proposal in drawing:
            last = first + 1 + (0 if proposal is None else len(proposal.tokens))
            if not sample.ticket.done:
                self._check(sample, proposal, tokens[first:last])
            first = last

    def _fork(self, prompt: Sequence) -> list[Sequence]:
        """The samples of a prompt that go on, with the tokens that surely begin each."""
        ahead = prompt.tokens[prompt.prompt_length :]
        samples = self.scheduler.fork(prompt)
        self.drafters.forked(prompt, samples)
        going: list[Sequence] = []
        for sample in samples:
            del sample.tokens[sample.prompt_length :]
            if all(self._append_forced(sample, token) for token in ahead):
                going.append(sample)
        return going

    def _check(self, sample: Sequence, proposal: Proposal | None, drawn: list[_Drawn]) -> None:
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
            token = drawn[node + 1].token
            node_after = None if proposal is None else proposal.child(node, token)
            sample.accepted += node_after is not None
            going = self._append(sample, drawn[node + 1])
            if going and node_after is not None:
                self.scheduler.memory.accept(sample, node_after - accepted)
                accepted += 1
            node = node_after
        if going and sample.mask is not None and sample.generation.jump:
            for token in sample.mask.forced():
                if not self._append_forced(sample, token):
                    break

    def _append_forced(self, sequence: Sequence, token: int) -> bool:
        """Appends a token that alone could follow; False where it ends the sample."""
        sequence.forced += 1
        return self._append(sequence, _Drawn(token, 0.0, False, None))

    def _append(self, sequence: Sequence, drawn: _Drawn) -> bool:
        """A sample gets its next token; False where that ends it."""
        if sequence.mask is not None and sequence.mask.error is not None:
            self._fail(sequence, f"the output cannot be held to its constraint: {sequence.mask.error}")
            return False
        if not math.isfinite(drawn.logprob):
            self._fail(sequence, _NOT_FINITE)
            return False
        sequence.tokens.append(drawn.token)
        sequence.logprob += drawn.logprob
        sequence.logprobs.append(drawn.logprob)
        sequence.near_ties += drawn.near_tie
        if drawn.allowed is not None:
            sequence.allowed.append(drawn.allowed)
        finish = _finish(sequence, drawn.token, self.model.max_positions)
        if finish is not None:
            sequence.computed = min(sequence.computed, len(sequence.tokens))
            self.scheduler.finish(sequence)
            sequence.ticket.finish_sample(sequence.index, sequence.sample(finish), sequence.cached)
        return finish is None

    def _fail(self, sequence: Sequence, reason: str) -> None:
        sequence.ticket.fail(EngineError(reason))
        self.scheduler.cancel(sequence.ticket)


def _right(proposal: Proposal, drawn: list[_Drawn]) -> list[int]:
    """The numbers of the proposed tokens that are what was drawn, one after the other."""
    right: list[int] = []
    node = proposal.child(-1, drawn[0].token)
    while node is not None:
        right.append(node)
        node = proposal.child(node, drawn[node + 1].token)
    return right


def _draws(sample: Sequence, proposal: Proposal | None, row: int, allowed: int) -> list[Draw]:
    """The draws of a sample from the rows of the hidden states from `row` on, with bits from row `allowed` on."""
    request = sample.generation
    params, key, drawn = request.sampling, request.keys[sample.index], request.drawn + sample.drawn
    rest = (request.sparse, request.exit_margin)
    if proposal is None:
        return [Draw(row, params, key, drawn, allowed, *rest)]
    depths = [0, *(depth + 1 for depth in proposal.depths)]
    return [
        Draw(row + index, params, key, drawn + depth, allowed + index if allowed >= 0 else -1, *rest)
        for index, depth in enumerate(depths)
    ]


def _finish(sequence: Sequence, token: int, max_positions: int) -> Finish | None:
    """Why a sample ends with this token; None where it does not."""
    request = sequence.generation
    if token in request.eos:
        return "eos"
    matched = sequence.mask is not None and sequence.mask.push(token)
    stopped = sequence.watch is not None and sequence.watch.push(token)
    if matched or stopped:
        return "match" if matched else "stop"
    length = len(sequence.tokens)
    if length - sequence.prompt_length == request.max_tokens or length == max_positions:
        return "length"
    return None
