"""What watching a run costs: processor time of the run's process, in blocks that differ in nothing but who watches.

    python -m benchmarks.watching [--only watched trace nobody] [--pairs 40] [--rows 12] [--program NAME] [--quick]
                                  [--model FOLDER] [--output DIR]

A block is a `qpdsl run` of the same few rows. All blocks run in one warm process, in rounds that go forwards and
backwards in turn (ABBA), and a round has a block of each kind: `silent`, whose events go nowhere; one that `nobody`
watches; one that writes a `trace`; and one that is `watched`, whose events another process reads over the socket from
the first moment on, as `--tui` does. Counted is the processor time of all threads from when the models are loaded on:
rows, saved run and output, and what is still to be written and sent at the end. Each block is set beside the silent one
of its round; printed is the geometric mean of the ratios with its 95% interval by Student's distribution. Every block
must have the same output.

Beside that stands what needs no quiet machine: events and bytes a row, the processor time to keep, write as text and
hand on one of each kind, in a loop over those of a run, and the share of a row's processor time that this comes to.

Steps of the built-in models take a third of a millisecond, so with them watching costs the most. With `--model`, which
answers in at most 64 tokens a sample, it is what a real one takes (`--program self_consistency --rows 4`).

Writes `benchmarks/results/watching.json` and `watching.md`, or `watching_real` of a `--model`. Four minutes, `--quick`
half a minute.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.common.folders import RESULTS
from benchmarks.common.results import Goal, goal_table, machine_line, write
from qpdsl.cli import main as qpdsl
from qpdsl.cli.watched import WATCHED
from qpdsl.executor.events.codec import encode
from qpdsl.executor.events.events import Event, ModelsLoaded
from qpdsl.executor.events.stream import EventStream, MadeLater
from qpdsl.executor.events.trace import TraceWriter

NAME = "watching"
SILENT, WAYS = "silent", ("watched", "trace", "nobody")
# A run that is watched or traced takes at most 2% more.
_GOAL = 0.98
# Reads all that the runs of one process tell, one after the other.
_WATCHER = """
import socket, sys, time
while True:
    with socket.socket(socket.AF_UNIX) as reader:
        try:
            reader.connect(sys.argv[1])
        except OSError:
            time.sleep(0.02)
            continue
        while reader.recv(1 << 16):
            pass
"""
# Seconds that a loop over events takes at the least.
_LOOP = 0.3


@dataclass
class Blocks:
    """Runs blocks; `silent` has their events go nowhere, and `seen` has those of a block that is to be `kept`.

    `started` is the processor time at which the models of the latest block were loaded.
    """

    program: str
    rows: int
    folder: Path
    model: Path | None = None
    silent: bool = False
    keeps: bool = False
    started: float = 0.0
    seen: list[Event] = field(default_factory=list)
    output: bytes | None = None

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Stands before every stream while the block runs, and has a process that watches what is to be watched."""
        emit = EventStream.emit

        def heard(stream: EventStream, event: Event | MadeLater) -> None:
            if type(event) is ModelsLoaded:
                self.started = time.process_time()
            if self.keeps:
                self.seen += (event,) if isinstance(event, Event) else event()
            if not self.silent:
                emit(stream, event)

        EventStream.emit = heard  # type: ignore[method-assign]
        socket = self.folder / "watched" / f"{os.getpid()}.sock"
        watcher = subprocess.Popen([sys.executable, "-c", _WATCHER, str(socket)])
        try:
            yield
        finally:
            watcher.terminate()
            watcher.wait()
            EventStream.emit = emit  # type: ignore[method-assign]

    def seconds(self, way: str) -> float:
        """Processor seconds of one block. Raises RuntimeError where it fails, or has another output."""
        output, trace = self.folder / "out.jsonl", self.folder / "trace.jsonl"
        trace.unlink(missing_ok=True)
        command = ["run", self.program, "--input", "counting-500", "--limit", str(self.rows), "--output", str(output)]
        command += ["--overwrite", "--no-statistics", "--threads", "1", "--quiet"]
        command += ["--trace", str(trace)] if way == "trace" else []
        if self.model is not None:
            command += ["--model", f"llm={self.model}", "--set", "n=4", "--set", "max_tokens=64", "--no-greedy"]
        own = {"QPDSL_RUNTIME_DIR": str(self.folder / way), "QPDSL_RUNS": str(self.folder / "runs")}
        own |= {WATCHED: "1"} if way == "watched" else {}
        self.silent = way == SILENT
        with _environment(own), contextlib.redirect_stderr(io.StringIO()) as said:
            code = qpdsl(command)
            took = time.process_time() - self.started
        if code:
            raise RuntimeError(said.getvalue())
        answers = b"\n".join(sorted(_without_times(output)))
        if self.output not in (None, answers):
            raise RuntimeError(f"a block that is `{way}` has another output")
        self.output = answers
        return took


@contextlib.contextmanager
def _environment(own: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(own)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _without_times(output: Path) -> Iterator[bytes]:
    for line in output.read_bytes().splitlines():
        record = json.loads(line)
        yield json.dumps({name: record[name] for name in sorted(record) if "seconds" not in name}).encode()


@dataclass(frozen=True)
class Measured:
    """Ratios to silent blocks, their geometric mean, and between what it lies with a probability of 95%."""

    ratio: float
    least: float
    most: float
    ratios: list[float]

    @classmethod
    def of(cls, ratios: list[float]) -> Measured:
        logs = [math.log(ratio) for ratio in ratios]
        mean = statistics.fmean(logs)
        wide = student(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
        return cls(math.exp(mean), math.exp(mean - wide), math.exp(mean + wide), ratios)

    def __str__(self) -> str:
        return f"{self.ratio - 1:+.2%} | {self.least - 1:+.2%} to {self.most - 1:+.2%} | {len(self.ratios)}"


def student(degrees: int) -> float:
    """The 97.5% quantile of Student's distribution, by its expansion around the normal one (Abramowitz and Stegun,
    1964, 26.7.5): from five degrees of freedom on within one in a hundred.
    """
    z = statistics.NormalDist().inv_cdf(0.975)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / degrees**power for power, term in enumerate(terms, 1))


def measured(blocks: Blocks, ways: Sequence[str], pairs: int) -> tuple[list[float], dict[str, Measured]]:
    """Seconds of the silent blocks, and the ways beside them."""
    kinds = (SILENT, *ways)
    for kind in kinds:
        blocks.seconds(kind)
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    for number in range(pairs):
        for kind in kinds[:: 1 if number % 2 else -1]:
            seconds[kind].append(blocks.seconds(kind))
    silent = seconds[SILENT]
    return silent, {
        way: Measured.of([one / other for one, other in zip(seconds[way], silent, strict=True)]) for way in ways
    }


@dataclass(frozen=True)
class Told:
    """Events of one kind: how many a row and of how many bytes, and the microseconds to write one as text."""

    count: float
    bytes: float
    microseconds: float


def told(events: Sequence[Event], rows: int) -> dict[str, Told]:
    by_kind: defaultdict[str, list[Event]] = defaultdict(list)
    for event in events:
        by_kind[type(event).__name__].append(event)
    found = {}
    for kind, own in by_kind.items():
        size = sum(len(encode(event, 0.0).encode()) + 1 for event in own)
        found[kind] = Told(len(own) / rows, size / rows, 1e6 * _looped(own, lambda own: [encode(e, 0.0) for e in own]))
    return dict(sorted(found.items(), key=lambda item: -item[1].count * item[1].microseconds))


def _traced(events: Sequence[Event]) -> None:
    stream = EventStream()
    with Path(os.devnull).open("wb", buffering=0) as file:
        writer = TraceWriter(stream, file)
        for event in events:
            stream.emit(event)
        writer.close()


def _looped(events: Sequence[Event], work: Any) -> float:
    """The processor seconds that an event takes."""
    times, began = 0, time.process_time()
    while time.process_time() - began < _LOOP:
        work(events)
        times += 1
    return (time.process_time() - began) / times / len(events)


def page(record: dict[str, Any], ways: dict[str, Measured], kinds: dict[str, Told], goals: list[Goal]) -> str:
    row, telling = record["row_seconds"], record["telling"]
    block = f"{record['rows']} rows of `{record['program']}` on {record['model']}"
    sums = f"{telling['count']:.0f} events a row, {telling['bytes'] / 1e3:.1f} kB"
    lines = [
        "# What watching costs",
        "",
        f"`python -m benchmarks.watching`: {block}, block by block beside blocks whose events go nowhere. A row takes "
        f"{1e3 * row:.1f} ms of processor time.",
        "",
        "| | processor time | between, 95% | pairs |",
        "|---|---:|---:|---:|",
        *(f"| {way} | {one} |" for way, one in ways.items()),
        "",
        f"By count: {sums}, {telling['microseconds']:.1f} µs of processor time to keep, write and hand on each: "
        f"{telling['share']:.2%} of a row's. What makes the events of candidates comes on top: pieces of text, and "
        "log-probabilities.",
        "",
        "| event | a row | bytes a row | µs to write one |",
        "|---|---:|---:|---:|",
        *(f"| `{kind}` | {own.count:.1f} | {own.bytes:,.0f} | {own.microseconds:.1f} |" for kind, own in kinds.items()),
        "",
        goal_table(goals),
        "",
        machine_line(),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--pairs", type=int, default=40, help="two or more")
    parser.add_argument("--rows", type=int, default=12)
    parser.add_argument("--program", default="beam_search")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    pairs = 4 if given.quick else given.pairs
    with tempfile.TemporaryDirectory() as name:
        blocks = Blocks(given.program, given.rows, Path(name), given.model)
        with blocks.listening():
            silent, ways = measured(blocks, given.only, pairs)
            blocks.keeps = True
            blocks.seconds("watched")
    row = statistics.median(silent) / given.rows
    each = _looped(blocks.seen, _traced)
    kinds = told(blocks.seen, given.rows)
    count, size = (sum(getattr(own, what) for own in kinds.values()) for what in ("count", "bytes"))
    telling = {"count": count, "bytes": size, "microseconds": 1e6 * each, "share": each * count / row}
    goals = [Goal(f"speed while `{way}`", _GOAL, 1 / one.ratio) for way, one in ways.items()]
    record = {
        "program": given.program,
        "model": "the built-in models" if given.model is None else given.model.name,
        "rows": given.rows,
        "row_seconds": row,
        "telling": telling,
        "kinds": {kind: asdict(own) for kind, own in kinds.items()},
        "ways": {way: asdict(one) for way, one in ways.items()},
        "silent": silent,
    }
    file = NAME if given.model is None else f"{NAME}_real"
    write(given.output, file, page(record, ways, kinds, goals), record, goals)


if __name__ == "__main__":
    main()
