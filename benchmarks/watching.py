"""What watching a run costs: processor time of the run's own process, in pairs that differ in who watches.

    python -m benchmarks.watching [--pairs N] [--rows N] [--program NAME] [--output DIR]

Each pair is two runs one after the other, in turn in either order, of the same rows: one whose events go nowhere, and
one that nobody watches, that writes a trace, or that somebody watches over its socket from its first moment, as `--tui`
does. Printed is the ratio of their processor seconds, as the geometric mean over pairs, with its 95% interval.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.common.folders import RESULTS
from benchmarks.common.machine import describe
from qpdsl.cli.watched import WATCHED

# What runs: with `silent`, events go nowhere.
RUN = """
import sys
from qpdsl.executor.events.stream import EventStream
if sys.argv[1] == "silent":
    EventStream.emit = lambda self, event: None
from qpdsl.cli import main
raise SystemExit(main(sys.argv[2:]))
"""
HOW = ("nobody", "trace", "watched")
# Of Student's distribution, 97.5%, by degrees of freedom.
_STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)


def processor_seconds(how: str, program: str, rows: int) -> float:
    """User and system time of one run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [sys.executable, "-c", RUN, how, "run", program, "--input", "counting-500", "--limit", str(rows)]
        command += ["--output", str(folder / "out.jsonl"), "--no-statistics", "--threads", "1", "--quiet"]
        command += ["--trace", str(folder / "trace.jsonl")] if how == "trace" else []
        env = {**os.environ, "QPDSL_RUNTIME_DIR": str(folder / "run"), "QPDSL_RUNS": str(folder / "runs")}
        env |= {WATCHED: "1"} if how == "watched" else {}
        with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            if how == "watched":
                threading.Thread(target=_watch, args=(folder / "run" / f"{process.pid}.sock",), daemon=True).start()
            assert process.stderr is not None
            said = process.stderr.read()
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(said.decode())
    return usage.ru_utime + usage.ru_stime


def _watch(path: Path) -> None:
    """Takes all that a run tells, once its socket is there."""
    with socket.socket(socket.AF_UNIX) as reader:
        while True:
            try:
                reader.connect(str(path))
                break
            except OSError:
                time.sleep(0.02)
        while reader.recv(1 << 16):
            pass


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """The geometric mean of ratios, and its 95% interval by Student's distribution of their logarithms."""
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logs)
    if len(logs) == 1:
        return math.exp(mean), 0.0, math.inf
    wide = _STUDENT[min(len(logs) - 2, len(_STUDENT) - 1)] * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - wide), math.exp(mean + wide)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--program", default="beam_search")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    processor_seconds("silent", options.program, 2)
    result: dict[str, object] = {"program": options.program, "rows": options.rows, "machine": describe()}
    for how in HOW:
        ratios = []
        for number in range(options.pairs):
            order = ("silent", how) if number % 2 else (how, "silent")
            took = {one: processor_seconds(one, options.program, options.rows) for one in order}
            ratios.append(took[how] / took["silent"])
        ratio, least, most = interval(ratios)
        result[how] = {"ratio": ratio, "least": least, "most": most, "pairs": ratios}
        print(f"{how:<8} {ratio - 1:+.2%} of processor time ({least - 1:+.2%} to {most - 1:+.2%}), {len(ratios)} pairs")
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "watching.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
