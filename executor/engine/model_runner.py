"""One model in the engine: its steps, and what they mean for the requests in them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from qpdsl.executor.engine.batch.staging import working_on
from qpdsl.executor.engine.memory.sequence import Chunk, Sequence
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.scheduler import Scheduler
from qpdsl.executor.engine.step.backends import Backend, ForwardOutput
from qpdsl.executor.engine.step.readout import Reading
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import Finish, GenerateRequest

# After so many steps of others a model goes before one whose batch would be full.
_PATIENCE = 8
# By how much the fullest batch is forgotten at each step.
_FORGETTING = 0.02
# Nothing can be drawn or scored from NaN or infinity.
_NOT_FINITE = "the model's logits are not finite numbers; a wider dtype may help"


@dataclass(slots=True)
class ModelRunner:
    """A model with the scheduler of its sequences and the backend that runs its steps.

    `passed` counts the steps of other models since its last one, `peak` is the most sequences that were ready lately:
    by these the engine chooses the model of a step.
    """

    name: str
    model: PagedModel
    backend: Backend
    scheduler: Scheduler
    passed: int = 0
    peak: float = 1.0

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
        with working_on(self.model.device):
            early_exit = any(chunk.sequence.request.exit_margin is not None for chunk in chunks)
            output = self.backend.forward(chunks, early_exit)
            self.scheduler.advance(chunks)
            self.resolve_reads(output)
            self.resolve_draws(output)

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
        for sequence, values in zip(sequences, self.backend.readout.read(readings), strict=True):
            sequence.values.extend(values)
            if not all(math.isfinite(value) for position in values for value in position):
                self._fail(sequence, _NOT_FINITE)
            elif len(sequence.values) == len(sequence.request.positions):
                self.scheduler.finish(sequence)
                sequence.ticket.finish_read(sequence.values, sequence.cached)

    def resolve_draws(self, output: ForwardOutput) -> None:
        """Draws the next token of every sample whose tokens are all computed; prompts are forked into their samples."""
        rows: list[int] = []
        sequences: list[Sequence] = []
        row = 0
        for chunk, count in output.readers:
            sequence = chunk.sequence
            if sequence.unforked:
                samples = self.scheduler.fork(sequence)
                sequences.extend(samples)
                rows.extend([row] * len(samples))
            elif sequence.generates:
                sequences.append(sequence)
                rows.append(row)
            row += count
        if not sequences:
            return
        drawn = self.backend.readout.sample(output.hidden, output.exit_hidden, rows, sequences)
        for sequence, token, logprob, near_tie in zip(sequences, *drawn, strict=True):
            if not sequence.ticket.done:
                self._append(sequence, token, logprob, near_tie)

    def _append(self, sequence: Sequence, token: int, logprob: float, near_tie: bool) -> None:
        """A sample gets its next token, which may end it."""
        if sequence.mask is not None and sequence.mask.error is not None:
            self._fail(sequence, f"the output cannot be held to its constraint: {sequence.mask.error}")
            return
        if not math.isfinite(logprob):
            self._fail(sequence, _NOT_FINITE)
            return
        sequence.tokens.append(token)
        sequence.logprob += logprob
        sequence.logprobs.append(logprob)
        sequence.near_ties += near_tie
        finish = _finish(sequence, token, self.model.max_positions)
        if finish is not None:
            self.scheduler.finish(sequence)
            sequence.ticket.finish_sample(sequence.index, sequence.sample(finish), sequence.cached)

    def _fail(self, sequence: Sequence, reason: str) -> None:
        sequence.ticket.fail(EngineError(reason))
        self.scheduler.cancel(sequence.ticket)


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
