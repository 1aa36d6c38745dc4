"""What the event stream costs: the same run without readers, and with a trace, which reads all events.

    python -m benchmarks.events [--rows N] [--repeats N] [--output DIR]

Measured inside the run, as two runs of one program differ by more than events cost: the seconds spent in the stream and
in events about candidates, and the processor seconds of the thread that encodes and writes beside the run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.common.folders import RESULTS
from benchmarks.common.machine import describe
from family.tasks.counting import problems
from qpdsl.executor.events.stream import EventStream
from qpdsl.executor.events.trace import Feed, TraceWriter
from qpdsl.executor.requests import engine_loop
from qpdsl.executor.runtime import run
from qpdsl.executor.runtime.generate import generate
from qpdsl.executor.runtime.instance import operator_events
from qpdsl.planner.plan.naive import plan
from qpdsl.runs.data.input_row import InputRow
from qpdsl.runs.job import Job
from qpdsl.runs.runner import outcomes_of
from qpdsl.session.programs import load_program
from qpdsl.session.session import Session


class Stopwatch:
    """Seconds spent in some functions, those inside each other counted once."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._depth = 0

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **named: Any) -> Any:
            if self._depth:
                return function(*args, **named)
            self._depth += 1
            start = time.thread_time()
            try:
                return function(*args, **named)
            finally:
                self.seconds += time.thread_time() - start
                self._depth -= 1

        return wrapped


def measure(rows: int, watch: str, folder: Path) -> dict[str, float]:
    """One run: its seconds, processor seconds, and those spent on events in its own thread."""
    job = Job(plan(load_program("beam_search", None, None)), None, 0)
    arguments = {"width": 4, "expand": 4, "depth": 40}
    inputs = [
        InputRow(str(number), {"problem": problem.text, **arguments})
        for number, problem in enumerate(islice(problems(5, "held-out"), rows))
    ]
    stopwatch, stream = Stopwatch(), EventStream()
    session = Session(events=stream, threads=1)
    session.load(job.plan)
    emitted = [0]
    emit = stream.emit

    def counted(event: Any) -> None:
        emitted[0] += 1
        emit(event)

    stream.emit = stopwatch.timed(counted)  # type: ignore[method-assign]
    # Where they are called: a module has a name of its own for what it imports.
    run.emit_started = stopwatch.timed(operator_events.emit_started)
    run.emit_changes = stopwatch.timed(operator_events.emit_changes)
    generate.emit_expanded = stopwatch.timed(operator_events.emit_expanded)
    path = folder / "trace.jsonl"
    beside = [0.0]
    drain = Feed._drain

    def drained(feed: Feed) -> None:
        before = time.thread_time()
        drain(feed)
        beside[0] += time.thread_time() - before

    Feed._drain = drained  # type: ignore[method-assign]
    writer = TraceWriter(stream, path.open("wb", buffering=0)) if watch == "trace" else None
    start, processor = time.perf_counter(), time.process_time()
    engine_loop.run(outcomes_of(session, job, inputs, 32))
    seconds, used = time.perf_counter() - start, time.process_time() - processor
    if writer is not None:
        writer.close()
    Feed._drain = drain  # type: ignore[method-assign]
    run.emit_started, run.emit_changes = operator_events.emit_started, operator_events.emit_changes
    generate.emit_expanded = operator_events.emit_expanded
    size = path.stat().st_size if writer is not None else 0
    return {
        "seconds": seconds,
        "processor": used,
        "telling": stopwatch.seconds,
        "writing": beside[0],
        "share": (stopwatch.seconds + beside[0]) / used,
        "events": emitted[0],
        "bytes": size,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    runs: dict[str, list[dict[str, float]]] = {"nobody": [], "trace": []}
    with tempfile.TemporaryDirectory() as folder:
        measure(4, "nobody", Path(folder))
        for _ in range(arguments.repeats):
            for watch, measured in runs.items():
                measured.append(measure(arguments.rows, watch, Path(folder)))
    result = {
        "rows": arguments.rows,
        "machine": describe(),
        **{
            watch: {name: statistics.median(one[name] for one in measured) for name in measured[0]}
            for watch, measured in runs.items()
        },
    }
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "events.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    for watch in runs:
        medians = result[watch]
        print(
            f"{watch:<8} {medians['events']:,.0f} events  {medians['processor']:.2f} s of processor time  "
            f"telling {medians['telling'] * 1000:.1f} ms, writing {medians['writing'] * 1000:.1f} ms: "
            f"{medians['share']:.2%}"
        )


if __name__ == "__main__":
    main()
