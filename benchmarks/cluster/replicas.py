"""Two replicas of one thread each against one: rows a second once all are loaded, and the same bytes.

    python -m benchmarks.cluster.replicas [--rows 200] [--repeats 3] [--quick]

A side's rate is counted from when its last replica is ready to the last row, so that loading is left out; it is given
beside. The sides take turns, in reversed order every other round. A machine that others use at the same time shows
nothing here.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

from benchmarks.cluster.job import INPUT, PROGRAM, job, rows
from benchmarks.common.folders import RESULTS
from benchmarks.common.results import Goal, Ratio, goal_table, machine_line, write
from qpdsl.cluster.cluster_address import ClusterAddress
from qpdsl.cluster.cluster_run import ClusterRun
from qpdsl.cluster.replica.row_work import setup_of_rows
from qpdsl.executor.events.stream import EventStream
from qpdsl.planner.values.value import dumps
from qpdsl.runs.data.input_row import NumberedRow
from qpdsl.runs.row_outcome import FinishedRow
from qpdsl.session.settings import SessionSettings

_GOAL = 1.6


class Measured:
    """One run over so many replicas: tokens a second once all are ready, seconds in all, and a digest of its bytes."""

    def __init__(self, replicas: int, count: int) -> None:
        own, numbered = job(), rows(count)
        setup = setup_of_rows([own], SessionSettings(threads=1))
        run = ClusterRun(ClusterAddress("local", replicas, replicas), setup, [own], EventStream())
        records: dict[int, str] = {}
        ended: list[tuple[float, int]] = []

        def done(finished: Sequence[FinishedRow]) -> None:
            for row in finished:
                records[row.number] = dumps(row.outcome.record(timing=False))
                ended.append((time.monotonic(), row.outcome.tokens_out))

        start = time.monotonic()
        asyncio.run(run.run([NumberedRow(number, row) for number, row in enumerate(numbered)], done))
        self.seconds = ended[-1][0] - start
        ready = max(figures.ready or 0.0 for figures in run.figures)
        tokens = sum(count for at, count in ended if at > ready)
        self.rate = tokens / (ended[-1][0] - ready)
        text = "\n".join(records[number] for number in range(count))
        self.digest = blake2b(text.encode(), digest_size=8).hexdigest()
        self.shares = [figures.rows for figures in run.figures]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, default=200)
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--quick", action="store_true", help="20 rows, once: does it work?")
    options.add_argument("--output", type=Path, default=RESULTS)
    given = options.parse_args()
    count, repeats = (20, 1) if given.quick else (given.rows, given.repeats)
    os.environ["OMP_NUM_THREADS"] = "1"
    rounds = []
    for repeat in range(repeats):
        sides = {}
        for replicas in (1, 2) if repeat % 2 == 0 else (2, 1):
            sides[replicas] = Measured(replicas, count)
        assert sides[1].digest == sides[2].digest, "two replicas gave other bytes than one"
        rounds.append(sides)
    ratio = Ratio.of([sides[2].rate / sides[1].rate for sides in rounds])
    goals = [Goal("tokens a second of two replicas over one", _GOAL, ratio.median)]
    table = [
        "| replicas | tokens a second | seconds with loading | rows of each |",
        "|---:|---:|---:|---|",
        *(
            f"| {replicas} | {side.rate:,.0f} | {side.seconds:.1f} | {', '.join(map(str, side.shares))} |"
            for sides in rounds
            for replicas, side in sorted(sides.items())
        ),
    ]
    words = (
        f"`{PROGRAM}` on {count} problems of `{INPUT}`, one thread a replica: two replicas against one, {ratio}. "
        "Both gave the same bytes."
    )
    text = "\n\n".join(["# Two replicas against one", machine_line(), words, "\n".join(table), goal_table(goals)])
    record = {
        "rows": count,
        "ratio": ratio.median,
        "rounds": [
            {
                str(replicas): {"rate": side.rate, "seconds": side.seconds, "rows": side.shares}
                for replicas, side in s.items()
            }
            for s in rounds
        ],
    }
    write(given.output, "cluster_replicas", text, record, goals)


if __name__ == "__main__":
    main()
