"""Random keys, clicks and sizes on recorded runs of six kinds: none of them may close the dashboard.

python -m benchmarks.dashboard_fuzz [--acts 10000] [--seed 0] [--only NAME]
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from qpdsl.cli import main as qpdsl
from tests.support.tui.hands import handle

# A program, the rows it runs over, and how many of them.
RUNS = {
    "beam_search": ("counting-500", 6),
    "lookahead": ("counting-500", 3),
    "dvts": ("counting-500", 4),
    "self_consistency": ("counting-500", 8),
    "filter_decoding": ("counting-500", 6),
    "constrained_json": ("person-100", 8),
}


def record(program: str, folder: Path) -> Path:
    """A trace of a run."""
    data, rows = RUNS[program]
    trace = folder / f"{program}.jsonl"
    paths = ["--output", str(folder / f"{program}-out.jsonl"), "--trace", str(trace)]
    qpdsl(["run", program, "--input", data, "--limit", str(rows), "--concurrency", "4", *paths])
    return trace


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--acts", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=[*RUNS])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        for program in [options.only] if options.only else RUNS:
            trace = record(program, Path(name))
            start = time.process_time()
            faults = asyncio.run(handle(trace, options.seed, options.acts, lambda number: print(f"{number:,} …")))
            took = time.process_time() - start
            print(f"{program}: {options.acts:,} acts, {len(faults)} keys that could not be obeyed, {took:.0f} s")
            for fault in sorted(set(faults)):
                print(f"  {fault}")


if __name__ == "__main__":
    main()
