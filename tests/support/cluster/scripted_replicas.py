"""Replicas without processes: they answer in the event loop of the run, and are lost when a test says so."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from qpdsl.cluster.backends.backend import ReplicaLost
from qpdsl.cluster.replica.messages import (
    Begun,
    Command,
    Done,
    Ended,
    Failed,
    GaveBack,
    GiveBack,
    Ready,
    ReplicaMessage,
    ReplicaSetup,
    Stop,
    Take,
    Task,
)
from qpdsl.runs.row_outcome import Outcome

BUILD = "build 1"
FINGERPRINT = {"build": BUILD, "processor": "x86_64 avx2 fma", "vectors": "AVX2", "device": "cpu"}
SETUP = ReplicaSetup(work=b"", settings={}, build=BUILD)


def outcome_of(task: Task) -> Outcome:
    """What every replica gives for a row: one token for each letter of its id."""
    return Outcome(
        id=task.row.id,
        answer=f"answer {task.row.id}",
        score=0.5,
        tokens_in=1,
        tokens_out=len(task.row.id),
        near_ties=0,
        seconds=0.0,
    )


class Lost(Exception):
    """Raised by a script to have its replica lost."""


@dataclass
class Script:
    """How replicas behave: `run` is called as a row begins, and may raise Lost or another error, which is told.

    `fingerprints` are by name, `slots` how many rows run at a time, `seconds` how long each takes.
    """

    run: Callable[[str, Task], None] = lambda name, task: None
    load: Callable[[str], None] = lambda name: None
    fingerprints: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    slots: int = 2
    seconds: float = 0.0
    started: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    rows: dict[str, list[int]] = field(default_factory=dict)


class ScriptedBackend:
    """A backend whose replicas do what a script says."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.closed = False

    async def start(self, name: str, number: int, setup: ReplicaSetup) -> _ScriptedLink:
        self.script.started.append(name)
        return _ScriptedLink(name, self.script)

    async def close(self) -> None:
        self.closed = True


class _ScriptedLink:
    def __init__(self, name: str, script: Script) -> None:
        self._name = name
        self._script = script
        self._waiting: deque[Task] = deque()
        self._changed = asyncio.Event()
        self._stopped = False
        self._running: set[asyncio.Task[None]] = set()
        self._messages: asyncio.Queue[ReplicaMessage | None] = asyncio.Queue()
        self._replica = asyncio.create_task(self._live())

    def send(self, command: Command) -> None:
        match command:
            case Take():
                self._waiting.extend(command.tasks)
            case GiveBack():
                back = [self._waiting.pop().number for _ in range(min(command.count, len(self._waiting)))]
                self._messages.put_nowait(GaveBack(tuple(back)))
            case Stop():
                self._stopped = True
        self._changed.set()

    async def receive(self) -> ReplicaMessage:
        message = await self._messages.get()
        if message is None:
            raise ReplicaLost(f"{self._name} was ended by SIGKILL")
        return message

    async def close(self) -> None:
        self._script.stopped.append(self._name)
        for task in (self._replica, *self._running):
            task.cancel()

    async def _live(self) -> None:
        say = self._messages.put_nowait
        try:
            self._script.load(self._name)
            say(Ready("here", 1, self._script.fingerprints.get(self._name, FINGERPRINT), 0.0))
            while not (self._stopped and not self._waiting and not self._running):
                while self._waiting and len(self._running) < self._script.slots:
                    self._begin(self._waiting.popleft())
                self._changed.clear()
                await self._changed.wait()
            say(Ended({}))
        except Lost:
            self._die()
        except Exception as error:
            say(Failed(error))

    def _begin(self, task: Task) -> None:
        self._messages.put_nowait(Begun(task.number))
        self._script.rows.setdefault(self._name, []).append(task.number)
        self._script.run(self._name, task)
        running = asyncio.create_task(self._run(task))
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        running.add_done_callback(lambda _: self._changed.set())

    async def _run(self, task: Task) -> None:
        await asyncio.sleep(self._script.seconds)
        self._messages.put_nowait(Done(task.number, outcome_of(task)))

    def _die(self) -> None:
        for task in self._running:
            task.cancel()
        self._messages.put_nowait(None)
