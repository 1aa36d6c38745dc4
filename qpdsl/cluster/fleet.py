"""The replicas of an address, as many as there is work for: started, compared, heard, replaced where one is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from qpdsl.cluster.backends.backend import Link, ReplicaBackend, ReplicaLost
from qpdsl.cluster.cluster_address import ClusterAddress
from qpdsl.cluster.replica.messages import (
    Command,
    Ended,
    Failed,
    Happened,
    Ready,
    ReplicaMessage,
    ReplicaSetup,
    Said,
    Stop,
)
from qpdsl.cluster.replica.replica_fingerprint import differences
from qpdsl.errors import LoadError, UsageError
from qpdsl.executor.events.events import ModelsLoaded, Preparing, ReplicaGone
from qpdsl.executor.events.stream import EventStream
from qpdsl.executor.requests.request import Calls

# After so many replicas that were lost one after another while they loaded, it ends where no other is ready, and else
# waits before it tries again, each time twice as long.
_MAX_FALSE_STARTS = 3
_LONGEST_PAUSE = 60.0
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
    """A replica from its start. `seconds` is how long it could take rows; `lost` says why it is gone, where it is.

    `number` is its place among those that run at once.
    """

    name: str
    number: int = 0
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


class FleetWork(Protocol):
    """What a fleet is for: rows, or requests. Replicas are known by name."""

    @property
    def finished(self) -> bool:
        """Whether there is nothing to do any more, and no replica is to take the place of one that ends."""

    @property
    def waiting(self) -> int:
        """How much waits that more replicas could begin now."""

    @property
    def idle(self) -> Collection[str]:
        """Replicas that have nothing to do."""

    def expect(self, replicas: int) -> None:
        """So many run or load now."""

    def joined(self, figures: ReplicaFigures) -> None:
        """A replica is ready."""

    def heard(self, figures: ReplicaFigures, clock: float, message: ReplicaMessage) -> None:
        """A message that is about the work. `clock` is how far the replica's clock is behind this one, in seconds."""

    def left(self, figures: ReplicaFigures) -> str:
        """A replica is gone, lost where its figures say so: what becomes of its work, in words."""


class Fleet:
    """Starts and ends the replicas of an address, and tells `work` of each.

    Replicas' events go to `events`, and `tell` gets notes for the user. Replicas whose results could differ in bits end
    it, with `allow_mixed` they are marked; None where there is nothing to mark. `models` are those that all have.
    `backend` takes the place of the one that the address names. A replica that has had nothing to do for `idle_seconds`
    ends, where there are more than the fewest.
    """

    def __init__(
        self,
        address: ClusterAddress,
        setup: ReplicaSetup,
        models: Sequence[str],
        work: FleetWork,
        events: EventStream,
        *,
        tell: Callable[[str], None] = lambda note: None,
        allow_mixed: bool | None = False,
        backend: ReplicaBackend | None = None,
        idle_seconds: float = 5.0,
    ) -> None:
        self._address = address
        self._setup = setup
        self._models = models
        self._work = work
        self._events = events
        self._tell = tell
        self._allow_mixed = allow_mixed
        self._given_backend = backend
        self.figures: list[ReplicaFigures] = []
        self.calls: dict[str, Calls] = {}
        self.lost = 0
        self._said: set[str] = set()
        self._first: Mapping[str, str] | None = None
        self._places: dict[int, _Place] = {}
        self._links: dict[str, Link] = {}
        self._false_starts = 0
        self._start_seconds: float | None = None
        self._scaler = Autoscaler(address.least, address.most, idle_seconds)

    async def run(self, count: int) -> None:
        """Starts so many, and goes on until all have ended.

        An error that every replica would have is raised. Raises UsageError where replicas cannot be started or differ.
        """
        self._backend = self._given_backend or _backend(self._address)
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                for number in range(count):
                    self._start(number)
                if self._address.scales:
                    group.create_task(self._scale())
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            await self._backend.close()

    def counts(self) -> tuple[int, int]:
        """How many replicas are ready, and how many load."""
        places = [place for place in self._places.values() if not place.stopping]
        ready = sum(place.figures.ready is not None for place in places)
        return ready, len(places) - ready

    def send(self, replica: str, command: Command) -> None:
        """Sends a command to a replica; one that is gone does not get it."""
        link = self._links.get(replica)
        if link is not None:
            link.send(command)

    def stop_all(self) -> None:
        """Ends all: a replica that is ready says what it took, the others are not waited for."""
        for place in self._places.values():
            if not place.stopping:
                self._stop(place)

    def _stop(self, place: _Place) -> None:
        place.stopping = True
        if place.figures.ready is None or place.link is None:
            place.task.cancel()
        else:
            place.link.send(Stop())
            asyncio.get_running_loop().call_later(_SECONDS_TO_STOP, place.task.cancel)

    @property
    def _expected(self) -> int:
        return sum(not place.stopping for place in self._places.values())

    def _start(self, number: int, pause: float = 0.0) -> None:
        """Has a replica started in the place of a number, which nobody has, after so many seconds."""
        figures = ReplicaFigures(f"replica {len(self.figures) + 1}", number)
        self.figures.append(figures)
        task = self._group.create_task(self._serve(number, pause))
        self._places[number] = _Place(task, figures, time.monotonic())
        self._work.expect(self._expected)
        if self._first is None:
            step = f"starting {len(self._places)} replicas, which load their models"
            self._events.emit(Preparing(step=step))

    async def _serve(self, number: int, pause: float) -> None:
        """Does what one replica says, until its end; where it is lost, another takes its place."""
        place = self._places[number]
        name = place.figures.name
        try:
            await asyncio.sleep(pause)
            place.started = time.monotonic()
            place.link = self._links[name] = await self._backend.start(name, number, self._setup)
            while not self._take(place, await place.link.receive()):
                pass
        except ReplicaLost as loss:
            self._lost(place, str(loss))
        finally:
            place.figures.ended = time.monotonic()
            self._links.pop(name, None)
            # What the replica has, such as a GPU, is free for another only then.
            if place.link is not None:
                await place.link.close()
            del self._places[number]
        if not self._work.finished and not place.stopping:
            again = self._false_starts - _MAX_FALSE_STARTS
            self._start(number, min(2.0**again, _LONGEST_PAUSE) if place.figures.ready is None and again >= 0 else 0.0)

    def _take(self, place: _Place, message: ReplicaMessage) -> bool:
        """Does what follows a message. Returns whether it was the last one."""
        match message:
            case Ready():
                self._ready(place, message)
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
            case _:
                self._work.heard(place.figures, place.clock, message)
        return False

    def _ready(self, place: _Place, message: Ready) -> None:
        """Compares a replica with the first one, and has it join the work. Raises UsageError."""
        figures = place.figures
        figures.machine, figures.process = message.machine, message.process
        figures.ready = time.monotonic()
        place.clock = figures.ready - message.clock
        if self._first is None:
            # The build is compared with that of this process, which is kept with the run.
            self._first = {**message.fingerprint, "build": self._setup.build}
            self._events.emit(ModelsLoaded(models=tuple(self._models), seconds=figures.ready - place.started))
        figures.differs = tuple(differences(self._first, message.fingerprint))
        if figures.differs:
            what = f"{figures.name} on `{message.machine}` differs from the others in {', '.join(figures.differs)}"
            if not self._allow_mixed:
                marked = "`--allow-mixed` uses it all the same, and marks the rows that it ran"
                help = None if self._allow_mixed is None else marked
                raise UsageError(f"{what}: the same row or request could have other bits there", help)
            self._tell(f"warning: {what}; rows that it runs are marked")
        self._false_starts = 0
        self._start_seconds = max(self._start_seconds or 0.0, figures.ready - place.started)
        self._work.joined(figures)

    def _lost(self, place: _Place, why: str) -> None:
        """Has the work of a replica that is gone done by others. Raises LoadError where too many are lost."""
        figures = place.figures
        figures.lost = why.removeprefix(f"{figures.name} ")
        self.lost += 1
        if place.stopping:
            return
        self._events.emit(ReplicaGone(replica=figures.name, why=figures.lost))
        if figures.ready is None:
            self._false_starts += 1
            if self._false_starts >= _MAX_FALSE_STARTS and not self.counts()[0]:
                raise LoadError(
                    f"{self._false_starts} replicas were lost one after another while they loaded: {why}",
                    "fewer replicas need less memory",
                )
            self._tell(f"warning: {why} while it loaded; another takes its place")
        else:
            self._tell(f"warning: {why}; {self._work.left(figures)}")

    async def _scale(self) -> None:
        """Starts and ends replicas while there is work."""
        while not self._work.finished:
            await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)
            there = self._expected
            wanted = self._scaler.wanted(self._load(), time.monotonic())
            if wanted > there and not self._work.finished:
                free = next(number for number in range(self._address.most) if number not in self._places)
                self._tell(f"note: {self._work.waiting:,} wait, or more: one more replica")
                self._start(free)
            elif wanted < there:
                self._end_idle()

    def _end_idle(self) -> None:
        """Ends the replica that has nothing to do and came last."""
        idle = self._work.idle
        for place in reversed(list(self._places.values())):
            if place.figures.name in idle and not place.stopping:
                self._stop(place)
                self._work.expect(self._expected)
                self._work.left(place.figures)
                self._events.emit(ReplicaGone(replica=place.figures.name, why="had nothing to do"))
                self._tell(f"note: {place.figures.name} has nothing to do, and ends")
                return

    def _load(self) -> Load:
        ready, loading = self.counts()
        running = [place for place in self._places.values() if not place.stopping and place.figures.ready is not None]
        rows = sum(place.figures.rows for place in running)
        seconds = sum(place.figures.seconds for place in running)
        return Load(
            running=ready,
            loading=loading,
            idle=len(self._work.idle),
            waiting=self._work.waiting,
            rate=rows / seconds if rows else None,
            start_seconds=self._start_seconds,
        )


def _backend(address: ClusterAddress) -> ReplicaBackend:
    if address.kind == "local":
        from qpdsl.cluster.backends.process_backend import ProcessBackend

        return ProcessBackend(address.most)
    from qpdsl.cluster.backends.ray_backend import RayBackend

    return RayBackend(address.most, address.place, address.cpus, address.gpus)
