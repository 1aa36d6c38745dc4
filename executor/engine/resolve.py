"""What a forward means for the requests in it: values that are read, tokens that are drawn, samples that end."""

from __future__ import annotations

import math

from qpdsl.executor.engine.backend import Forwarded
from qpdsl.executor.engine.draw import Reading
from qpdsl.executor.engine.lane import Lane
from qpdsl.executor.engine.request import Finish, GenerateRequest, LogProbRequest, ReadRequest
from qpdsl.executor.engine.scheduler import Scheduler
from qpdsl.executor.engine.sequence import Sequence
from qpdsl.executor.engine.ticket import EngineError

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
            sequence.ticket.read(sequence)


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
            sequence.ticket.finished(sequence, sequence.sample(finish))


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
