"""One model in the engine, with what its sequences run on and when its turn comes.

MERGED: What a forward means for the requests in it: values that are read, tokens that are drawn, samples that end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from qpdsl.executor.engine.memory.sequence import Sequence
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.scheduler import Scheduler
from qpdsl.executor.engine.step.backends import Backend, Forwarded
from qpdsl.executor.engine.step.readout import Reading
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import Finish, GenerateRequest, LogProbRequest, ReadRequest

# After so many steps of others a model goes before one whose batch would be full.
_PATIENCE = 8


@dataclass(slots=True)
class Lane:
    """One model in the engine, and what its sequences run on."""

    name: str
    model: PagedModel
    backend: Backend
    scheduler: Scheduler
    # Steps of other models since its last one, and the most sequences that were ready lately.
    passed: int = 0
    peak: float = 1.0

    def urgency(self) -> float:
        """How full its next batch would be against the fullest lately, and how long it has waited.

        A model that waits for another's results gets a fuller batch by letting the other go on.
        """
        return self.scheduler.ready / self.peak + self.passed / _PATIENCE


# Nothing can be drawn or scored from NaN or infinity.
_NOT_FINITE = "the model's logits are not finite numbers; a wider dtype may help"


def resolve_reads(lane: Lane, forwarded: Forwarded) -> None:
    """Hands what was read at their positions to the requests that read; those that have all of it are done."""
    readings: list[Reading] = []
    readers: list[tuple[Sequence, ReadRequest | LogProbRequest]] = []
    at = 0
    for chunk, rows in forwarded.readers:
        sequence, request = chunk.sequence, chunk.sequence.request
        if not isinstance(request, GenerateRequest):
            readings.append(Reading(forwarded.hidden[at : at + rows], request, len(sequence.read)))
            readers.append((sequence, request))
        at += rows
    for (sequence, request), values in zip(readers, lane.backend.drawer.read(readings), strict=True):
        sequence.read.extend(values)
        if not all(math.isfinite(value) for row in values for value in row):
            _fail(lane.scheduler, sequence, _NOT_FINITE)
        elif len(sequence.read) == len(request.positions):
            lane.scheduler.finish(sequence)
            sequence.ticket.read(sequence.read, sequence.cached)


def resolve_draws(lane: Lane, forwarded: Forwarded) -> None:
    """Draws the next token of every sample whose tokens are all computed; prompts are forked into their samples."""
    scheduler, most = lane.scheduler, lane.model.max_positions
    rows: list[int] = []
    sequences: list[Sequence] = []
    at = 0
    for chunk, count in forwarded.readers:
        sequence = chunk.sequence
        if sequence.unforked:
            samples = scheduler.fork(sequence)
            sequences.extend(samples)
            rows.extend([at] * len(samples))
        elif isinstance(sequence.request, GenerateRequest):
            sequences.append(sequence)
            rows.append(at)
        at += count
    if not sequences:
        return
    drawn = lane.backend.drawer.draw(forwarded.hidden, forwarded.middle, rows, sequences)
    for sequence, token, logprob, near in zip(sequences, *drawn, strict=True):
        if sequence.ticket.done:
            continue
        if sequence.mask is not None and sequence.mask.error is not None:
            _fail(scheduler, sequence, f"the output cannot be held to its constraint: {sequence.mask.error}")
            continue
        if not math.isfinite(logprob):
            _fail(scheduler, sequence, _NOT_FINITE)
            continue
        sequence.tokens.append(token)
        sequence.logprob += logprob
        sequence.logprobs.append(logprob)
        sequence.near_ties += near
        finish = _finish(sequence, token, most)
        if finish is not None:
            scheduler.finish(sequence)
            sequence.ticket.finished(sequence.index, sequence.sample(finish), sequence.cached)


def _finish(sequence: Sequence, token: int, most: int) -> Finish | None:
    """Why a sample ends with this token, where it does; no sequence has more than `most`."""
    request = sequence.request
    assert isinstance(request, GenerateRequest)
    if token in request.eos:
        return "eos"
    matched = sequence.mask is not None and sequence.mask.push(token)
    stopped = sequence.watch is not None and sequence.watch.push(token)
    if matched or stopped:
        return "match" if matched else "stop"
    length = len(sequence.tokens)
    if length - sequence.prompt_length == request.max_tokens or length == most:
        return "length"
    return None


def _fail(scheduler: Scheduler, sequence: Sequence, reason: str) -> None:
    sequence.ticket.fail(EngineError(reason))
    scheduler.cancel(sequence.ticket)
