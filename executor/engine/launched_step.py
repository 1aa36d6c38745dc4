"""A step of one model on its way: launched, then collected."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from qpdsl.executor.engine.exit.exit_steps import ExitOutcome
from qpdsl.executor.engine.memory.sequence import Chunk, Proposal, Sequence
from qpdsl.executor.engine.step.draws import Draw, Masks
from qpdsl.executor.engine.step.readout import Pending
from qpdsl.executor.engine.step_report import StepSeconds
from qpdsl.executor.requests.latencies import Waits
from qpdsl.executor.requests.request import Finish

# torch does not annotate it.
_event: Any = torch.cuda.Event


class EndedSequence(NamedTuple):
    """A sequence that is done, of which its ticket is still to be told; `finish` is None where it reads."""

    sequence: Sequence
    finish: Finish | None = None

    def tell(self) -> None:
        """Tells its ticket."""
        sequence, ticket = self.sequence, self.sequence.ticket
        if self.finish is None:
            ticket.finish_read(sequence.values, sequence.cached)
        else:
            ticket.finish_sample(sequence.index, sequence.sample(self.finish), sequence.cached)


@dataclass(eq=False, slots=True)
class LaunchedStep:
    """One step of one model. Its chunks are `computed`, in the order in which the device works.

    The launch fills what it reads and draws: `reading` sequences, of which those that are `read` have no more to read;
    `drawing` samples, each with its proposal, of which the draws follow one another; `outcomes` of those that tried an
    exit. Of a `plain` step all chunks are samples, which are listed there alone; `rows` of what is drawn are theirs,
    None for all. `pending` are the results. `feeder` is the step in flight that feeds it (see `feeding.py`). `started`
    is when it was launched, `since` when its scheduling began, on the clock of `time.perf_counter`; `had` is that on
    the clock of `time.process_time`. The collection adds to `ended`, `spent` and `waits`, and sets `seconds` and
    `worked_seconds`.
    """

    chunks: list[Chunk]
    started: float
    spent: StepSeconds
    plain: list[Sequence] | None = None
    rows: list[int] | None = None
    feeder: LaunchedStep | None = None
    pending: Pending | None = None
    reading: list[tuple[Sequence, bool]] = field(default_factory=list)
    drawing: list[tuple[Sequence, Proposal | None]] = field(default_factory=list)
    draws: list[Draw] = field(default_factory=list)
    outcomes: list[ExitOutcome | None] = field(default_factory=list)
    masks: Masks | None = None
    head: Stopwatch | None = None
    ended: list[EndedSequence] = field(default_factory=list)
    waits: Waits = field(default_factory=Waits)
    since: float = 0.0
    had: float = 0.0
    seconds: float = 0.0
    worked_seconds: float = 0.0


class Stopwatch:
    """Runs from when it is made until it is stopped; on a GPU on the device's own clock, for which nobody waits."""

    def __init__(self, device: str) -> None:
        self._on_device = device.startswith("cuda")
        self._start = self._now()
        self._end = self._start

    def stop(self) -> None:
        """Ends what it measures."""
        self._end = self._now()

    def seconds(self) -> float:
        """What it has measured. On a GPU, asked once the device has come to where it was stopped; else it waits."""
        if not self._on_device:
            return float(self._end - self._start)
        if not self._end.query():
            self._end.synchronize()
        return float(self._start.elapsed_time(self._end)) / 1e3

    def _now(self) -> Any:
        if not self._on_device:
            return time.perf_counter()
        event = _event(enable_timing=True)
        event.record()
        return event
