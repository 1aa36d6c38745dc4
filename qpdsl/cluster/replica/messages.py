"""What a replica gets before its first row, and what is sent from then on.

To a replica: `Take`, `GiveBack`, `Stop`. From it: first `Ready`, then `Begun`, `Done`, `GaveBack`, `Happened`, `Said`,
and at the end `Ended`, or `Failed` at any time.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from qpdsl.errors import UsageError
from qpdsl.executor.events.events import Event
from qpdsl.executor.requests.request import Calls
from qpdsl.runs.data.input_row import InputRow
from qpdsl.runs.job import Job
from qpdsl.runs.row_outcome import Outcome
from qpdsl.runs.store.fingerprint import build
from qpdsl.session.settings import SessionSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSetup:
    """Everything can be pickled. `jobs` are pickled by themselves, as they may need what the Python files define.

    `settings` are those of its session; `python` are the files whose functions programs call, by their whole path, and
    `python_digest` what they held. `folder` is the current folder, to which names of models may be relative.
    `concurrency` is how many rows are in flight in each replica, None for what the plans say. `threads` are those that
    a replica may use at the most. `build` is that of the process which gives out the rows.
    """

    jobs: bytes
    settings: SessionSettings
    python: tuple[str, ...] = ()
    python_digest: str = ""
    folder: str = "."
    concurrency: int | None = None
    threads: int | None = None
    build: str = ""

    @classmethod
    def of(
        cls,
        jobs: Sequence[Job],
        settings: SessionSettings,
        *,
        python: Sequence[str] = (),
        python_digest: str = "",
        concurrency: int | None = None,
    ) -> Self:
        """The setup for these jobs. Raises UsageError for a job that cannot be sent to another process."""
        try:
            packed = pickle.dumps(tuple(jobs))
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            graders = ", ".join(dict.fromkeys(f"`{job.grader.name}`" for job in jobs))
            raise UsageError(
                f"`--cluster`: what is run for a row cannot be sent to replicas (grader {graders}): {error}",
                "leave out `--cluster`",
            ) from error
        return cls(
            jobs=packed,
            settings=settings.of_session,
            python=tuple(str(Path(file).absolute()) for file in python),
            python_digest=python_digest,
            folder=str(Path.cwd()),
            concurrency=concurrency,
            build=build(),
        )


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
