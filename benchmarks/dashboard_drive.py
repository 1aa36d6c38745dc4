"""Every shipped program and idiom driven as its user would, and what the screens say beside what its summary says.

    python -m benchmarks.dashboard_drive [--only WORD]

Each runs once, watched from the start, by somebody who comes late, and replayed. Some then run over rows on a server
that fails now and then, on two replicas, and as a sweep. What differs is printed; the exit code counts it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from qpdsl.executor.events.trace import LineReader, read_trace
from qpdsl.tui.state.run_state import RunState
from tests.support.remote.stub_server import stub
from tests.support.shipped_programs import cases
from tests.support.tui.driven import faults_of

ROWS = ("--input", "counting-500", "--limit", "6")
ON_A_SERVER = ("greedy", "self_consistency", "best_of_n", "beam_search")
ON_REPLICAS = ("self_consistency", "beam_search", "dvts")
SWEPT = ("self_consistency", "best_of_n")


def ran(folder: Path, command: str, *arguments: str) -> tuple[dict[str, Any], RunState]:
    """The summary of a command, and what its trace adds up to."""
    trace = folder / "trace.jsonl"
    line = [sys.executable, "-m", "qpdsl", command, *arguments, "--trace", str(trace), "--overwrite"]
    done = subprocess.run(line, check=False, capture_output=True, text=True)
    try:
        summary = json.loads(done.stdout)
    except ValueError:
        raise SystemExit(f"{' '.join(line)}\n{done.stderr}") from None
    state = RunState()
    for event in read_trace(trace, LineReader()):
        state.add(event)
    return summary, state


def rows_apart(summary: dict[str, Any], state: RunState) -> Iterator[str]:
    """What the rows of a run say beside its summary."""
    rows = state.rows.values()
    shown = {
        "rows": state.done,
        "failed": state.failed,
        "correct": state.right,
        "compared": state.judged,
        "greedy_correct": state.greedy_right,
        "tokens_in": sum(row.prompt_tokens for row in rows),
        "tokens_out": sum(row.sampled_tokens for row in rows),
    }
    for name, value in shown.items():
        if summary.get(name, value) != value:
            yield f"{name} is {value:,} on the screens, {summary[name]:,} in the summary"
    if "servers" in summary:
        latest = [server.latest for server in state.servers.values()]
        for name in ("requests", "retries"):
            count = sum(getattr(one, name) for one in latest)
            if count != summary["servers"][name]:
                yield f"{name} at servers are {count:,} on the screens, {summary['servers'][name]:,} in the summary"


def cells_apart(summary: dict[str, Any], state: RunState) -> Iterator[str]:
    """What the cells of a sweep say beside its table."""
    if len(state.cells) != len(summary["cells"]):
        yield f"{len(state.cells)} cells on the screens, {len(summary['cells'])} in the table"
    for cell, reached in zip(summary["cells"], state.cells.values(), strict=False):
        told = {
            "rows": (reached.done, cell["problems"] * cell["seeds"]),
            "failed": (reached.failed, cell["failed"]),
            "right": (reached.right, round(cell["accuracy"] * cell["problems"] * cell["seeds"])),
            "tokens": (reached.sampled_tokens, round(cell["tokens"] * cell["problems"] * cell["seeds"])),
            "at work": (reached.running, 0),
        }
        yield from (
            f"{reached.cell}: {name}: {one:,}, not {other:,}" for name, (one, other) in told.items() if one != other
        )


def elsewhere(folder: Path, only: str) -> Iterator[tuple[str, list[str]]]:
    """Programs over rows: on a server with faults, on replicas, and as sweeps."""
    output = ("--json", "--output", str(folder / "out.jsonl"), "--no-statistics")
    for program in ON_A_SERVER:
        if only in f"{program} server":
            with stub("vllm") as server:
                llm = ("--model", f"llm=vllm:{server.url}#{server.model}", "--completions", "none")
                # The server is known before it fails.
                ran(folder, "run", program, *llm, "--input", "counting-500", "--limit", "1", *output)
                for fault in ("too_many", "overloaded"):
                    server.fail(fault, 2)
                yield f"{program} on a server", list(rows_apart(*ran(folder, "run", program, *llm, *ROWS, *output)))
    for program in ON_REPLICAS:
        if only in f"{program} cluster":
            cluster = ("--cluster", "local:2")
            yield f"{program} on a cluster", list(rows_apart(*ran(folder, "run", program, *cluster, *ROWS, *output)))
    for program in SWEPT:
        if only in f"{program} eval":
            swept = ("--set", "n=2,4", *ROWS, "--format", "json")
            yield f"{program} under eval", list(cells_apart(*ran(folder, "eval", program, *swept)))
            on = (*swept, "--cluster", "local:2", "--fresh")
            yield f"{program} under eval on a cluster", list(cells_apart(*ran(folder, "eval", program, *on)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="WORD", help="Those alone whose names have WORD.")
    only, differ = parser.parse_args().only, list[bool]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        here = ((case.name, faults_of(case, folder)) for case in cases() if only in case.name)
        for what, faults in chain(here, elsewhere(folder, only)):
            print(f"{'✖' if faults else '✔'} {what}", *faults, sep="\n    ", flush=True)
            differ.append(bool(faults))
    print(f"{len(differ)} driven, {sum(differ)} differ")
    raise SystemExit(any(differ))


if __name__ == "__main__":
    main()
