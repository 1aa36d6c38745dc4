"""A thousand replicas and a million rows: what giving them out costs, what the driver holds, what a loss costs.

    python -m benchmarks.cluster.simulation [--replicas 1000] [--rows 1000000] [--quick]

The dispatcher and the scheduler are those of `qpdsl/cluster`; replicas and the clock are simulated (discrete events).
How long a row takes is drawn, by its number, from rows that were run and timed on this machine, with as many in flight
as the plan says; `--record` runs them again. The driver is a server with a queue: each message takes as long as its
handling by the dispatcher took here, and what `driver_costs.py` measured for messages. With a saved run it commits,
when it has handled all that has arrived, the rows that have ended since the last commit, in the time that was measured
for one row and for each more; "one by one" commits each row by itself. Halfway through, one replica in a hundred is
lost, and another loads in its place.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import itertools
import json
import math
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.cluster.driver_costs import DriverCosts, measured, problem
from benchmarks.cluster.job import INPUT, PROGRAM, job, rows
from benchmarks.common.folders import RESULTS
from benchmarks.common.results import machine_line, write
from qpdsl.cluster.dispatcher import Commands, Dispatcher
from qpdsl.cluster.replica.messages import GiveBack, Take, Task
from qpdsl.runs.runner import outcomes_of

# Between the driver and a replica, one way, in a data centre; and until a replica has loaded its models.
_LATENCY = 0.001
_LOADING = 30.0
_RECORDED = 120
_LOST = 0.01


@dataclass
class _Replica:
    """A simulated replica: rows that wait in it, and how many run."""

    name: str
    waiting: deque[int] = field(default_factory=deque)
    running: set[int] = field(default_factory=set)
    busy: float = 0.0
    gone: bool = False


@dataclass(frozen=True)
class Result:
    """What a simulated run came to; seconds are simulated, but for `handling`, which was measured, a row."""

    seconds: float
    least_seconds: float
    handling: float
    kept_rows: int
    lost: int
    again: int
    driver_busy: float
    slots_busy: float
    together: float


class Simulation:
    """One run of `count` rows over `replicas` with `slots` rows at a time each; `costs` are the driver's.

    `commits` says how many rows it commits at a time at the most; with 0 the run is not kept.
    """

    def __init__(
        self,
        count: int,
        replicas: int,
        slots: int,
        durations: list[float],
        costs: DriverCosts,
        commits: float = 0,
        lost: int = 0,
    ) -> None:
        self._count, self._slots, self._durations, self._costs = count, slots, durations, costs
        self._most_together = commits
        self._uncommitted = 0
        self._committed = 0
        self._commits = 0
        self._dispatcher = Dispatcher(self._tasks(), replicas)
        self._replicas = {f"replica {number}": _Replica(f"replica {number}") for number in range(replicas)}
        self._events: list[tuple[float, int, str, str, Any]] = []
        self._order = itertools.count()
        self._to_lose = lost
        self._at_a_time = replicas * slots
        self._driver_free = 0.0
        self._driver_busy = 0.0
        self._handling = 0.0
        self._kept = 0
        self._again = 0
        self._outcomes = bytearray(count)
        self._done = 0

    def run(self) -> Result:
        """Plays all events. Raises AssertionError where a row is done twice, or not at all."""
        for name in self._replicas:
            self._at(0.0, "join", name)
        now = 0.0
        while self._events:
            now, _, kind, name, what = heapq.heappop(self._events)
            getattr(self, f"_{kind}")(now, name, what)
        assert self._dispatcher.finished
        assert Counter(self._outcomes) == {1: self._count}
        assert self._committed == (self._count if self._most_together else 0)
        work = sum(self._seconds(number) for number in range(self._count))
        slots = self._at_a_time
        return Result(
            seconds=self._driver_free,
            least_seconds=work / slots,
            handling=self._handling / self._count,
            kept_rows=self._kept,
            lost=sum(replica.gone for replica in self._replicas.values()),
            again=self._again,
            driver_busy=self._driver_busy / self._driver_free,
            slots_busy=sum(replica.busy for replica in self._replicas.values()) / (slots * self._driver_free),
            together=self._committed / max(self._commits, 1),
        )

    def _tasks(self) -> Iterator[Task]:
        return (Task(number, problem(number)) for number in range(self._count))

    def _seconds(self, number: int) -> float:
        """How long a row takes, whoever runs it."""
        return self._durations[number * 2_654_435_761 % 2**32 % len(self._durations)]

    def _at(self, when: float, kind: str, name: str, what: Any = None) -> None:
        heapq.heappush(self._events, (when, next(self._order), kind, name, what))

    # What the driver hears. It takes one message at a time.

    def _join(self, now: float, name: str, _: object) -> None:
        self._drive(now, lambda: self._dispatcher.join(name))

    def _begun(self, now: float, name: str, number: int) -> None:
        if not self._replicas[name].gone:
            self._drive(now, lambda: self._dispatcher.begun(name, number))

    def _done_row(self, now: float, name: str, number: int) -> None:
        if self._replicas[name].gone:
            return

        def done() -> Commands:
            task, commands = self._dispatcher.done(name, number)
            self._outcomes[number] += task is not None
            self._done += task is not None
            return commands

        self._drive(now, done, self._costs.messages)
        if self._most_together and not self._uncommitted:
            # Once the driver has handled what has arrived by then.
            self._at(self._driver_free, "commit", "")
        self._uncommitted += 1
        if self._to_lose and self._done >= self._count // 2:
            self._lose(now)

    def _commit(self, now: float, name: str, _: object) -> None:
        together = int(min(self._uncommitted, self._most_together))
        cost = self._costs.commit + (together - 1) * self._costs.row
        self._drive(now, list, cost)
        self._commits += 1
        self._committed += together
        self._uncommitted -= together
        if self._uncommitted:
            self._at(self._driver_free, "commit", "")

    def _gave_back(self, now: float, name: str, numbers: tuple[int, ...]) -> None:
        if not self._replicas[name].gone:
            self._drive(now, lambda: self._dispatcher.gave_back(name, numbers))

    def _lose(self, now: float) -> None:
        for number in range(self._to_lose):
            name = f"replica {number}"
            self._replicas[name].gone = True
            departure = self._dispatcher.leave(name)
            self._again += departure.again
            self._deliver(now, departure.commands)
            another = f"replica {len(self._replicas)}"
            self._replicas[another] = _Replica(another)
            self._at(now + _LOADING, "join", another)
        self._to_lose = 0

    def _drive(self, now: float, work: Any, cost: float = 0.0) -> None:
        # Processor time, as others may use the machine too.
        start = time.process_time()
        commands = work()
        took = time.process_time() - start
        self._handling += took
        self._driver_free = max(self._driver_free, now) + took + cost
        self._driver_busy += took + cost
        self._kept = max(self._kept, self._dispatcher.kept)
        self._deliver(self._driver_free, commands)

    def _deliver(self, now: float, commands: Commands) -> None:
        for name, command in commands:
            self._at(now + _LATENCY, "command", name, command)

    # What replicas hear and do.

    def _command(self, now: float, name: str, command: object) -> None:
        replica = self._replicas[name]
        if replica.gone:
            return
        match command:
            case Take():
                replica.waiting.extend(task.number for task in command.tasks)
                self._fill(now, replica)
            case GiveBack():
                back = tuple(replica.waiting.pop() for _ in range(min(command.count, len(replica.waiting))))
                self._at(now + _LATENCY, "gave_back", name, back)

    def _ended(self, now: float, name: str, number: int) -> None:
        replica = self._replicas[name]
        if replica.gone:
            return
        replica.running.discard(number)
        replica.busy += self._seconds(number)
        self._at(now + _LATENCY, "done_row", name, number)
        self._fill(now, replica)

    def _fill(self, now: float, replica: _Replica) -> None:
        while replica.waiting and len(replica.running) < self._slots:
            number = replica.waiting.popleft()
            replica.running.add(number)
            self._at(now + _LATENCY, "begun", replica.name, number)
            self._at(now + self._seconds(number), "ended", replica.name, number)


def recorded() -> dict[str, Any]:
    """How long each of some rows took in one session, with as many in flight as the plan says."""
    from qpdsl.session.session import Session

    own = job()
    session = Session()
    session.load(own.plan)
    seconds: list[float] = []
    start = time.monotonic()
    asyncio.run(
        outcomes_of(session, own, rows(_RECORDED), done=lambda row: seconds.append(round(row.outcome.seconds, 4)))
    )
    wall = time.monotonic() - start
    return {"seconds": [round(each, 4) for each in seconds], "in_flight": max(1, round(sum(seconds) / wall))}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--replicas", type=int, default=1000)
    options.add_argument("--rows", type=int, default=1_000_000)
    options.add_argument("--record", action="store_true", help="run and time rows again")
    options.add_argument("--quick", action="store_true", help="20 replicas and 5,000 rows: does it work?")
    options.add_argument("--output", type=Path, default=RESULTS)
    given = options.parse_args()
    replicas, count = (20, 5_000) if given.quick else (given.replicas, given.rows)
    path = given.output / "cluster_simulation.json"
    times = None
    if path.is_file() and not given.record:
        times = json.loads(path.read_text(encoding="utf-8"))["recorded"]
    times = times or recorded()
    costs = measured()
    durations, slots = times["seconds"], times["in_flight"]
    lost = max(1, round(replicas * _LOST))
    runs = {
        "no commit": Simulation(count, replicas, slots, durations, costs).run(),
        "saved run": Simulation(count, replicas, slots, durations, costs, math.inf).run(),
        "saved run, one by one": Simulation(count, replicas, slots, durations, costs, 1).run(),
        f"saved run, {lost} lost": Simulation(count, replicas, slots, durations, costs, math.inf, lost).run(),
    }
    record = {
        "recorded": times,
        "replicas": replicas,
        "rows": count,
        "costs": asdict(costs),
        "runs": {name: asdict(result) for name, result in runs.items()},
    }
    write(given.output, "cluster_simulation", report(replicas, count, slots, times, costs, runs), record)


def report(
    replicas: int, count: int, slots: int, times: dict[str, Any], costs: DriverCosts, runs: dict[str, Result]
) -> str:
    """The figures in words and tables."""
    plain, kept, _, loss = runs.values()
    mean = sum(times["seconds"]) / len(times["seconds"])
    demand = replicas * slots / mean
    file = costs.commit / kept.together + costs.row
    parts = {"the dispatcher": plain.handling, "messages": costs.messages, "the run's file": file}
    most = max(parts, key=lambda name: parts[name])
    table = [
        "| run | simulated seconds | of a perfect run's | driver busy | replicas busy | rows a commit |",
        "|---|---:|---:|---:|---:|---:|",
        *(
            f"| {name} | {run.seconds:,.0f} | {run.seconds / run.least_seconds:.3f} | {run.driver_busy:.1%} | "
            f"{run.slots_busy:.1%} | {run.together:.1f} |"
            for name, run in runs.items()
        ),
    ]
    held = costs.input_bytes + costs.outcome_bytes
    words = [
        f"{replicas:,} replicas with {slots} rows in flight each, {count:,} rows of {mean:.1f} s (as `{PROGRAM}` took "
        f"on `{INPUT}` here, {len(times['seconds'])} rows timed). Replicas end {demand:,.0f} rows a second.",
        f"**Overhead a row**: the dispatcher {1e6 * plain.handling:.1f} µs, messages {1e6 * costs.messages:.1f} µs, "
        f"the run's file {1e6 * file:.0f} µs with {kept.together:.1f} rows a commit (a commit of one "
        f"takes {1e6 * costs.commit:.0f} µs, each row more {1e6 * costs.row:.0f} µs). "
        f"**Most of it is {most}.** The more rows wait, the more go into a commit: one driver can keep at most "
        f"{1 / (plain.handling + costs.messages + costs.row):,.0f} rows a second.",
        f"**Memory**: the dispatcher holds {plain.kept_rows:,} rows at the most. A run from the command line holds all "
        f"rows of its input and all outcomes besides: {costs.input_bytes:,.0f} and {costs.outcome_bytes:,.0f} bytes a "
        f"row, {held * count / 2**30:.2f} GiB for these.",
        f"**Recovery**: {loss.lost} replicas lost halfway, {loss.again:,} rows run again, and the run takes "
        f"{loss.seconds - kept.seconds:,.1f} s longer, with {_LOADING:.0f} s until another has loaded. Every row was "
        "done once.",
    ]
    return "\n\n".join(["# A simulated cluster", machine_line(), *words[:1], "\n".join(table), *words[1:]])


if __name__ == "__main__":
    main()
