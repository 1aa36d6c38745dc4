"""What a replica gets before its first row, and what is sent from then on.

To a replica: `Take`, `GiveBack`, `Stop`. From it: first `Ready`, then `Begun`, `Done`, `GaveBack`, `Happened`, `Said`,
and at the end `Ended`, or `Failed` at any time. Those of requests are in `qpdsl/serve`.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from qpdsl.errors import UsageError
from qpdsl.executor.events.events import Event
from qpdsl.executor.requests.request import Calls
from qpdsl.runs.data.input_row import InputRow
from qpdsl.runs.row_outcome import Outcome
from qpdsl.runs.store.fingerprint import build
from qpdsl.session.settings import SessionSettings
from qpdsl.session.surroundings import Surroundings


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSetup:
    """Everything can be pickled. `work` (see `ReplicaWork`) is pickled by itself: it may need what the files define.

    `settings` are those of its session, which goes on where a server is gone if it is to `outlive_servers`; `python`
    are the files whose functions programs call, by their whole path, and `python_digest` what they held. `folder` is
    the current folder, to which names of models may be relative. `threads` are those that a replica may use at the
    most. `build` is that of the process which gives out the work.
    """

    work: bytes
    settings: SessionSettings
    outlive_servers: bool = False
    python: tuple[str, ...] = ()
    python_digest: str = ""
    folder: str = "."
    threads: int | None = None
    build: str = ""

    @classmethod
    def of(
        cls,
        work: object,
        settings: SessionSettings,
        *,
        python: Iterable[str] = (),
        surroundings: Surroundings | None = None,
        outlive_servers: bool = False,
    ) -> Self:
        """The setup for this work; `surroundings` have the functions of the `python` files.

        Raises UsageError where these are tools, and what `pickle` does where the work cannot be sent to a process.
        """
        surroundings = surroundings or Surroundings()
        if any(function.kind == "tool" for function in surroundings.functions.values()):
            raise UsageError("`--cluster` runs no program with tools: replicas would keep no call")
        return cls(
            work=pickle.dumps(work),
            settings=settings.of_session,
            outlive_servers=outlive_servers,
            python=tuple(str(Path(file).absolute()) for file in python),
            python_digest=surroundings.python,
            folder=str(Path.cwd()),
            build=build(),
        )


class Command:
    """What is sent to a replica."""

    __slots__ = ()


class ReplicaMessage:
    """What a replica sends."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Task:
    """A row to run: the `job` of the setup that runs it, by number. `number` counts tasks of the run from 0."""

    number: int
    row: InputRow
    job: int = 0


@dataclass(frozen=True, slots=True)
class Take(Command):
    """Rows to run, after those that the replica has."""

    tasks: tuple[Task, ...]


@dataclass(frozen=True, slots=True)
class GiveBack(Command):
    """Asks for up to `count` rows that the replica has not begun."""

    count: int


@dataclass(frozen=True, slots=True)
class Stop(Command):
    """There are no more rows."""


@dataclass(frozen=True, slots=True)
class Ready(ReplicaMessage):
    """The models are loaded. `machine` and `process` say where; `fingerprint`: see `replica_fingerprint.py`.

    `clock` is the replica's monotonic clock now, in seconds.
    """

    machine: str
    process: int
    fingerprint: Mapping[str, str]
    clock: float


@dataclass(frozen=True, slots=True)
class Begun(ReplicaMessage):
    """A row has begun to run, and cannot be given back any more."""

    number: int


@dataclass(frozen=True, slots=True)
class Done(ReplicaMessage):
    """What came of a row."""

    number: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class GaveBack(ReplicaMessage):
    """Rows that the replica has not begun and has no more, perhaps none."""

    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Happened(ReplicaMessage):
    """Events of the replica's session, fewer than there were."""

    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Said(ReplicaMessage):
    """A note for the user."""

    note: str


@dataclass(frozen=True, slots=True)
class Failed(ReplicaMessage):
    """The replica cannot go on, for a reason that another would have too."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Ended(ReplicaMessage):
    """The last message: what the replica took of servers, by model."""

    calls: Mapping[str, Calls]
