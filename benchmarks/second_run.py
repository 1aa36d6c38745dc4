"""Whether the second run on a new machine, the first that is planned by cost, is as fast as one that rules alone plan.

    python -m benchmarks.second_run [--limit 100] [--pairs 10] [--quick] [--output FOLDER]

Each program runs once with an empty cache folder. A pair is two starts from what that run left: as `qpdsl run` is, and
with `--disable-rule choice_by_cost`; every other pair begins with the second. Both take whole processes, loading
included, and must answer alike. Writes `second_run.json` and `.md`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.common.folders import RESULTS
from benchmarks.common.results import Ratio, machine_line, write
from benchmarks.first_second import Start, started

NAME = "second_run"
PROGRAMS = {"constrained_json": "person-100", "beam_search": "counting-500"}
_BY_RULES = ("--disable-rule", "choice_by_cost")


@dataclass(frozen=True)
class Pairs:
    """One program: the first line of its EXPLAIN after the first run, and the starts `by_cost` and `by_rules`."""

    program: str
    explained: str
    by_cost: list[Start]
    by_rules: list[Start]

    def ratio(self, clock: str) -> Ratio:
        """Seconds by cost over seconds by rules."""
        return Ratio.of(
            [
                getattr(one, clock) / getattr(other, clock)
                for one, other in zip(self.by_cost, self.by_rules, strict=True)
            ]
        )


def measure(program: str, data: str, limit: int, pairs: int) -> Pairs:
    """Raises RuntimeError where a run fails, nothing was chosen by cost, or the two sides differ in an answer."""
    own = [sys.executable, "-m", "qpdsl"]
    with tempfile.TemporaryDirectory() as place:
        left, cache, rows = (Path(place) / name for name in ("left", "cache", "rows.jsonl"))
        kept = {"XDG_CACHE_HOME": str(left), "QPDSL_RUNS": f"{place}/runs", "OMP_NUM_THREADS": "1"}
        run = [*own, "run", program, "--input", data, "--limit", str(limit), "--no-greedy", "--output", str(rows)]

        def side(options: tuple[str, ...]) -> tuple[Start, str]:
            shutil.rmtree(cache, ignore_errors=True)
            shutil.copytree(left, cache)
            rows.unlink(missing_ok=True)
            start = started(" ".join([program, *options]), [*run, *options], **kept | {"XDG_CACHE_HOME": str(cache)})
            return start, rows.read_text("utf-8")

        started(program, run, **kept)
        explain = subprocess.run([*own, "explain", program], env=os.environ | kept, capture_output=True, check=True)
        explained = explain.stdout.decode().splitlines()[0]
        if "chosen by cost" not in explained:
            raise RuntimeError(f"nothing was chosen by cost: {explained}")
        found = Pairs(program, explained, [], [])
        for number in range(pairs):
            sides = [(found.by_cost, ()), (found.by_rules, _BY_RULES)]
            answers = set()
            for starts, options in sides if number % 2 == 0 else sides[::-1]:
                start, answered = side(options)
                starts.append(start)
                answers.add(answered)
            if len(answers) > 1:
                raise RuntimeError(f"{program} answers otherwise where its plan is chosen by cost")
    return found


def page(found: list[Pairs], limit: int) -> str:
    lines = [
        "# The second run on a new machine",
        "",
        f"The first {limit} rows, seconds by cost over seconds by rules alone: the median of the pairs, and the lowest "
        "and highest.",
        "",
        "| program | pairs | processor time | wall time | after the first run |",
        "|---|---:|---:|---:|---|",
        *(
            f"| {one.program} | {len(one.by_cost)} | {one.ratio('cpu')} | {one.ratio('wall')} | `{one.explained}` |"
            for one in found
        ),
    ]
    return "\n".join([*lines, "", machine_line(), ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--quick", action="store_true", help="one pair of four rows")
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    limit, pairs = (4, 1) if given.quick else (given.limit, given.pairs)
    found = [measure(program, data, limit, pairs) for program, data in PROGRAMS.items()]
    write(given.output, NAME, page(found, limit), {"limit": limit, "programs": [asdict(one) for one in found]})


if __name__ == "__main__":
    main()
