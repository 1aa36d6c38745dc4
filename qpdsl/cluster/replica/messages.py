"""What is said between whoever gives out rows and a replica.

To a replica: `Take`, `GiveBack`, `Stop`. From it: first `Ready`, then `Begun`, `Done`, `GaveBack`, `Happened`, `Said`,
and at the end `Ended`, or `Failed` at any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from qpdsl.dataset.row_outcome import Outcome
from qpdsl.executor.events.events import Event
from qpdsl.executor.requests.request import Calls
from qpdsl.inputs.input_row import InputRow


@dataclass(frozen=True, slots=True)
class Task:
    """A row to run: the `job` of the setup that runs it, by number. `number` counts tasks of the run from 0."""

    number: int
    row: InputRow
    job: int = 0


@dataclass(frozen=True, slots=True)
class Take:
    """Rows to run, after those that the replica has."""

    tasks: tuple[Task, ...]


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Asks for up to `count` rows that the replica has not begun."""

    count: int


@dataclass(frozen=True, slots=True)
class Stop:
    """There are no more rows."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The models are loaded. `machine` and `process` say where; `fingerprint`: see `replica_fingerprint.py`.

    `clock` is the replica's monotonic clock now, in seconds.
    """

    machine: str
    process: int
    fingerprint: Mapping[str, str]
    clock: float


@dataclass(frozen=True, slots=True)
class Begun:
    """A row has begun to run, and cannot be given back any more."""

    number: int


@dataclass(frozen=True, slots=True)
class Done:
    """What came of a row."""

    number: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class GaveBack:
    """Rows that the replica has not begun and has no more, perhaps none."""

    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Happened:
    """Events of the replica's session, fewer than there were."""

    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Said:
    """A note for the user."""

    note: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The replica cannot go on, for a reason that another would have too."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Ended:
    """The last message: what the replica took of servers, by model."""

    calls: Mapping[str, Calls]


Command = Take | GiveBack | Stop
Message = Ready | Begun | Done | GaveBack | Happened | Said | Failed | Ended
