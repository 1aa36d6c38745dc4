"""A run over many replicas: it starts as many as there is work for, gives out rows, and takes every outcome once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from qpdsl.cluster.backends.backend import Link, ReplicaBackend, ReplicaLost
from qpdsl.cluster.cluster_address import ClusterAddress
from qpdsl.cluster.dispatcher import Commands, Dispatcher
from qpdsl.cluster.replica.messages import (
    Begun,
    Done,
    Ended,
    Failed,
    GaveBack,
    Happened,
    Message,
    Ready,
    ReplicaSetup,
    Said,
    Stop,
    Task,
)
from qpdsl.cluster.replica.replica_fingerprint import differences
from qpdsl.cluster.row_scheduler import MAX_LOSSES
from qpdsl.errors import UsageError
from qpdsl.executor.events.events import ModelsLoaded, Preparing
from qpdsl.executor.events.stream import EventStream
from qpdsl.executor.requests.request import Calls
from qpdsl.runs.data.input_row import NumberedRow
from qpdsl.runs.job import Job
from qpdsl.runs.row_outcome import FinishedRow, Outcome, SaveRows

# So many replicas may be lost one after another before any is ready.
_MAX_FALSE_STARTS = 3
_SECONDS_TO_STOP = 10.0
_SECONDS_BETWEEN_LOOKS = 0.5


@dataclass(frozen=True, slots=True)
class Load:
    """A cluster at one time: replicas that run or load, those that have no row, rows that wait, and how fast rows end.

    `rate` is in rows a second of one replica, None until a row has ended. `start_seconds` is how long a replica took to
    load, None until one has.
    """

    running: int
    loading: int
    idle: int
    waiting: int
    rate: float | None
    start_seconds: float | None


@dataclass(slots=True)
class Autoscaler:
    """Never fewer than `least` nor more than `most`. Times are in seconds on one clock."""

    least: int
    most: int
    idle_seconds: float = 5.0
    _idle_since: float | None = None

    def wanted(self, load: Load, now: float) -> int:
        """How many replicas there should be now, those that load among them: one more or one fewer than there are."""
        there = load.running + load.loading
        if there < self.least:
            return self.least
        if load.idle == 0 or load.waiting:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        if load.waiting and not load.idle and not load.loading and there < self.most:
            return there + self._is_worth_it(load)
        if self._idle_since is not None and now - self._idle_since >= self.idle_seconds and there > self.least:
            self._idle_since = now
            return there - 1
        return there

    def _is_worth_it(self, load: Load) -> bool:
        """Whether the rows that wait take longer, by what is known so far, than one more replica takes to load."""
        if load.rate is None or load.start_seconds is None or not load.running:
            return load.running > 0 and load.start_seconds is not None
        return load.waiting / (load.rate * load.running) > load.start_seconds


@dataclass(slots=True)
class ReplicaFigures:
    """A replica from its start. `seconds` is how long it could take rows; `lost` says why it is gone, where it is."""

    name: str
    machine: str = ""
    process: int = 0
    ready: float | None = None
    ended: float | None = None
    rows: int = 0
    tokens: int = 0
    lost: str | None = None
    differs: tuple[str, ...] = field(default=())

    @property
    def seconds(self) -> float:
        """From when its models were loaded to now, or to its end."""
        if self.ready is None:
            return 0.0
        return (time.monotonic() if self.ended is None else self.ended) - self.ready

    def words(self) -> str:
        """For people: one line, without the name."""
        rate = self.tokens / self.seconds if self.seconds else 0.0
        text = f"{self.rows:,} rows, {self.tokens:,} tokens out ({rate:,.0f} tokens/s)"
        where = f" on {self.machine}, process {self.process}" if self.machine else ""
        lost = f"; {self.lost}" if self.lost is not None else ""
        mixed = f"; differs in {', '.join(self.differs)}" if self.differs else ""
        return f"{text}{where}{lost}{mixed}"

    def to_json(self) -> dict[str, Any]:
        """For programs; the keys are stable."""
        return {
            "name": self.name,
            "machine": self.machine,
            "rows": self.rows,
            "tokens_out": self.tokens,
            "seconds": round(self.seconds, 3),
            "lost": self.lost,
            "differs": list(self.differs),
        }


@dataclass(slots=True)
class _Place:
    """A replica that runs or loads: its task, its link once there is one, and what it did."""

    task: asyncio.Task[None]
    figures: ReplicaFigures
    started: float
    link: Link | None = None
    clock: float = 0.0
    stopping: bool = False


class ClusterRun:
    """Runs rows on the replicas of an address: a `RowRunner`.

    `jobs` are those of `setup`, in order. Replicas' events go to `events`, and `tell` gets notes for the user. Replicas
    whose results could differ in bits end the run, with `allow_mixed` they are marked. `backend` takes the place of the
    one that the address names. `at_work` is told of each row that runs, and of those that run no more and will again.
    """

    def __init__(
        self,
        address: ClusterAddress,
        setup: ReplicaSetup,
        jobs: Sequence[Job],
        events: EventStream,
        *,
        tell: Callable[[str], None] = lambda note: None,
        allow_mixed: bool = False,
        backend: ReplicaBackend | None = None,
        at_work: Callable[[NumberedRow, bool], None] = lambda row, runs: None,
    ) -> None:
        self._address = address
        self._setup = setup
        self._jobs = jobs
        self._events = events
        self._tell = tell
        self._allow_mixed = allow_mixed
        self._backend = backend
        self._at_work = at_work
        self.figures: list[ReplicaFigures] = []
        self.calls: dict[str, Calls] = {}
        self._said: set[str] = set()
        self._first: Mapping[str, str] | None = None
        self._places: dict[int, _Place] = {}
        self._false_starts = 0
        self._start_seconds: float | None = None
        self._scaler = Autoscaler(address.least, address.most)

    @property
    def mixed(self) -> list[str]:
        """The names of the replicas that differ from the first one."""
        return [figures.name for figures in self.figures if figures.differs]

    async def run(self, rows: Sequence[NumberedRow], done: SaveRows) -> None:
        """See `RowRunner`. Rows have the names of their replicas where these could differ, and only then.

        `done` is called with all that have ended since it was called last, so what came while it waited for the disk
        waits for the disk once. An error that every replica would have ends the run. Raises UsageError where replicas
        cannot be started or differ.
        """
        tasks = (Task(place, row.row, row.run) for place, row in enumerate(rows))
        self._given = rows
        self._rows = Dispatcher(tasks, self._address.most, len(self._jobs))
        self._done = done
        self._ended: list[FinishedRow] = []
        self._something_ended = asyncio.Event()
        backend = self._backend or _backend(self._address)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._hand_over_all())
                for number in range(min(self._address.least, len(rows))):
                    self._start(group, backend, number)
                if self._address.scales:
                    group.create_task(self._scale(group, backend))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            await backend.close()

    def _start(self, group: asyncio.TaskGroup, backend: ReplicaBackend, number: int) -> None:
        """Has a replica started in the place of a number, which nobody has."""
        figures = ReplicaFigures(f"replica {len(self.figures) + 1}")
        self.figures.append(figures)
        task = group.create_task(self._serve(group, backend, number))
        self._places[number] = _Place(task, figures, time.monotonic())
        self._rows.expected = len(self._places)
        self._say_starting()

    async def _serve(self, group: asyncio.TaskGroup, backend: ReplicaBackend, number: int) -> None:
        """Does what one replica says, until its end; where it is lost, another takes its place."""
        place = self._places[number]
        name = place.figures.name
        try:
            place.link = await backend.start(name, number, self._setup)
            while not await self._take(place, await place.link.receive()):
                pass
        except ReplicaLost as loss:
            self._lost(place, str(loss))
        finally:
            place.figures.ended = time.monotonic()
            # What the replica has, such as a GPU, is free for another only then.
            if place.link is not None:
                await place.link.close()
            del self._places[number]
        if self._rows.finished:
            self._stop_all()
        elif not place.stopping:
            self._start(group, backend, number)

    async def _take(self, place: _Place, message: Message) -> bool:
        """Does what follows a message. Returns whether it was the last one."""
        name = place.figures.name
        match message:
            case Ready():
                self._ready(place, message)
            case Begun(number=number):
                self._send(self._rows.begun(name, number))
                self._at_work(self._given[number], True)
            case Done(number=number, outcome=outcome):
                task, commands = self._rows.done(name, number)
                self._send(commands)
                if task is not None:
                    place.figures.rows += 1
                    place.figures.tokens += outcome.tokens_out
                    self._end(task, outcome, name)
            case GaveBack(numbers=numbers):
                self._send(self._rows.gave_back(name, numbers))
            case Happened(events=events):
                for event in events:
                    self._events.emit(replace(event, at=event.at + place.clock))
            case Said(note=note):
                if note not in self._said:
                    self._said.add(note)
                    self._tell(note)
            case Failed(error=error):
                raise error
            case Ended(calls=calls):
                for model, own in calls.items():
                    self.calls[model] = self.calls.get(model, Calls()) + own
                return True
        if self._rows.finished:
            self._stop_all()
        return False

    def _ready(self, place: _Place, message: Ready) -> None:
        """Compares a replica with the first one, and gives it its first rows. Raises UsageError."""
        figures = place.figures
        figures.machine, figures.process = message.machine, message.process
        figures.ready = time.monotonic()
        place.clock = figures.ready - message.clock
        if self._first is None:
            # The build is compared with that of this process, which is kept with the run.
            self._first = {**message.fingerprint, "build": self._setup.build}
            models = tuple(dict.fromkeys(model for job in self._jobs for model in job.models.values()))
            self._events.emit(ModelsLoaded(models=models, seconds=figures.ready - place.started))
        figures.differs = tuple(differences(self._first, message.fingerprint))
        if figures.differs:
            what = f"{figures.name} on `{message.machine}` differs from the others in {', '.join(figures.differs)}"
            if not self._allow_mixed:
                raise UsageError(
                    f"{what}: the same row could have other bits there",
                    "`--allow-mixed` uses it all the same, and marks the rows that it ran",
                )
            self._tell(f"warning: {what}; rows that it runs are marked")
        self._false_starts = 0
        self._start_seconds = max(self._start_seconds or 0.0, figures.ready - place.started)
        self._send(self._rows.join(figures.name))

    def _say_starting(self) -> None:
        """Says to whoever watches how many replicas are ready, until the first one is."""
        if self._first is None:
            self._events.emit(Preparing(step=f"starting {len(self._places)} replicas, which load their models"))

    def _lost(self, place: _Place, why: str) -> None:
        """Has the rows of a replica that is gone run again, and fails those that were under way too often."""
        figures = place.figures
        figures.lost = why.removeprefix(f"{figures.name} ")
        if place.stopping:
            return
        if figures.ready is None:
            self._false_starts += 1
            if self._false_starts >= _MAX_FALSE_STARTS:
                raise UsageError(
                    f"{self._false_starts} replicas were lost one after another while they loaded: {why}",
                    "fewer replicas need less memory",
                )
            self._tell(f"warning: {why} while it loaded; another takes its place")
            return
        departure = self._rows.leave(figures.name)
        self._tell(f"warning: {why}; {len(departure.again)} rows run again")
        for number in departure.again:
            self._at_work(self._given[number], False)
        self._send(departure.commands)
        for task in departure.failed:
            error = f"{MAX_LOSSES} replicas were lost while they ran this row; the last one {figures.lost}"
            self._end(task, self._failed(task, error), figures.name)

    def _failed(self, task: Task, error: str) -> Outcome:
        applies = self._jobs[task.job].grader.applies(task.row)
        return Outcome(
            id=task.row.id,
            answer=None,
            score=None,
            tokens_in=0,
            tokens_out=0,
            near_ties=0,
            seconds=0.0,
            correct=False if applies else None,
            error=error,
        )

    def _end(self, task: Task, outcome: Outcome, replica: str) -> None:
        row = self._given[task.number]
        self._ended.append(FinishedRow(row.number, outcome, replica, run=row.run))
        self._something_ended.set()

    async def _hand_over_all(self) -> None:
        """Hands over rows as they end, until there are no more."""
        try:
            while not self._rows.finished or self._ended:
                await self._something_ended.wait()
                self._something_ended.clear()
                self._hand_over()
        finally:
            # Where the run is interrupted, before replicas are ended, which takes longer.
            self._hand_over()

    def _hand_over(self) -> None:
        """Calls `done` with the rows that have ended since it was called last."""
        ended, self._ended = self._ended, []
        if ended:
            self._done(ended if self.mixed else [replace(row, replica=None) for row in ended])

    def _send(self, commands: Commands) -> None:
        links = {place.figures.name: place.link for place in self._places.values()} if commands else {}
        for replica, command in commands:
            link = links.get(replica)
            if link is not None:
                link.send(command)

    def _stop_all(self) -> None:
        """Ends the run: a replica that is ready says what it took, the others are not waited for."""
        self._something_ended.set()
        for place in self._places.values():
            if place.stopping:
                continue
            place.stopping = True
            if place.figures.ready is None or place.link is None:
                place.task.cancel()
            else:
                place.link.send(Stop())
                asyncio.get_running_loop().call_later(_SECONDS_TO_STOP, place.task.cancel)

    async def _scale(self, group: asyncio.TaskGroup, backend: ReplicaBackend) -> None:
        """Starts and ends replicas while the run goes on."""
        while not self._rows.finished:
            await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)
            places = {number: place for number, place in self._places.items() if not place.stopping}
            wanted = self._scaler.wanted(self._load(), time.monotonic())
            if wanted > len(places) and not self._rows.finished:
                free = next(number for number in range(self._address.most) if number not in self._places)
                self._tell(f"note: {self._rows.waiting:,} rows or more wait: one more replica")
                self._start(group, backend, free)
            elif wanted < len(places):
                self._end_idle()

    def _end_idle(self) -> None:
        """Ends the replica that has no rows and came last."""
        idle = self._rows.idle
        for place in reversed(list(self._places.values())):
            if place.figures.name in idle and place.link is not None and not place.stopping:
                self._send(self._rows.leave(place.figures.name, blames=False).commands)
                place.stopping = True
                place.link.send(Stop())
                self._rows.expected = sum(not other.stopping for other in self._places.values())
                self._tell(f"note: {place.figures.name} has nothing to do, and ends")
                return

    def _load(self) -> Load:
        places = [place for place in self._places.values() if not place.stopping]
        running = [place for place in places if place.figures.ready is not None]
        rows = sum(place.figures.rows for place in running)
        seconds = sum(place.figures.seconds for place in running)
        return Load(
            running=len(running),
            loading=len(places) - len(running),
            idle=len(self._rows.idle),
            waiting=self._rows.waiting,
            rate=rows / seconds if rows else None,
            start_seconds=self._start_seconds,
        )


def _backend(address: ClusterAddress) -> ReplicaBackend:
    if address.kind == "local":
        from qpdsl.cluster.backends.process_backend import ProcessBackend

        return ProcessBackend(address.most)
    from qpdsl.cluster.backends.ray_backend import RayBackend

    return RayBackend(address.most, address.place, address.cpus, address.gpus)
