"""A step between its two halves: launched, and not collected yet."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from qpdsl.executor.engine.exit.exit_steps import Outcome
from qpdsl.executor.engine.memory.proposal import Proposal
from qpdsl.executor.engine.memory.sequence import Chunk, Sequence
from qpdsl.executor.engine.step.draws import Draw, Masks
from qpdsl.executor.engine.step.readout import Pending
from qpdsl.executor.engine.step.stopwatch import Stopwatch
from qpdsl.executor.engine.step_report import StepSeconds
from qpdsl.executor.requests.latencies import Waits
from qpdsl.executor.requests.request import Finish


class Ended(NamedTuple):
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
    exit. `pending` are the results. `started` is when it was launched, `since` when its scheduling began, on the clock
    of `time.perf_counter`. The collection adds to `ended`, `spent` and `waits`, and sets `seconds`.
    """

    chunks: list[Chunk]
    started: float
    spent: StepSeconds
    pending: Pending | None = None
    reading: list[tuple[Sequence, bool]] = field(default_factory=list)
    drawing: list[tuple[Sequence, Proposal | None]] = field(default_factory=list)
    draws: list[Draw] = field(default_factory=list)
    outcomes: list[Outcome | None] = field(default_factory=list)
    masks: Masks | None = None
    head: Stopwatch | None = None
    ended: list[Ended] = field(default_factory=list)
    waits: Waits = field(default_factory=Waits)
    since: float = 0.0
    seconds: float = 0.0
