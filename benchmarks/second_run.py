"""Whether the second run on a new machine, the first that is planned by cost, is as fast as one that rules alone plan.

    python -m benchmarks.second_run [--limit 100] [--pairs 10] [--quick] [--output FOLDER]

A pair is three starts: a program's first run, with an empty cache folder, and two from what that left: as `qpdsl run`
is, and with `--disable-rule choice_by_cost`; in every other pair the latter comes first. They take whole processes,
loading included, and must answer alike. A plan that cost left as the rules made it has the same work, so there the two
differ by the choice alone. A program is slower where all of the interval of its median is, which holds the true median
in at least 95 of 100 such tables: of ten pairs from the second to the last but one. Fewer than six say nothing. Writes
`second_run.json` and `.md`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from math import comb
from pathlib import Path
from statistics import median

from benchmarks.common.folders import RESULTS
from benchmarks.common.results import machine_line, write
from benchmarks.first_second import Start, started

NAME = "second_run"
PROGRAMS = {"constrained_json": "person-100", "beam_search": "counting-500"}
_BY_RULES = ("--disable-rule", "choice_by_cost")
_OWN = [sys.executable, "-m", "qpdsl"]


@dataclass(frozen=True)
class Pair:
    """The starts by cost and by rules alone, and the lines of EXPLAIN that cost changed."""

    by_cost: Start
    by_rules: Start
    changed: list[str]

    @property
    def ratio(self) -> float:
        """Processor seconds by cost over those by rules alone."""
        return self.by_cost.cpu / self.by_rules.cpu


@dataclass(frozen=True)
class Pairs:
    """One program, and its first line in EXPLAIN after a first run."""

    program: str
    explained: str
    pairs: list[Pair] = field(default_factory=list)

    @property
    def row(self) -> str:
        ratios = sorted(pair.ratio for pair in self.pairs)
        out = _left_out(len(ratios))
        low, high = ratios[max(out, 0)], ratios[-1 - max(out, 0)]
        verdict = "too few pairs" if out < 0 else "**slower**" if low > 1 else "no slower"
        plans = {tuple(pair.changed) for pair in self.pairs if pair.changed}
        changed = sum(bool(pair.changed) for pair in self.pairs)
        cells = (
            self.program,
            len(ratios),
            f"{median(ratios):.3f} ({low:.3f}–{high:.3f})",
            verdict,
            f"{changed} of {len(ratios)}" + "".join(f"; `{line.strip()}`" for plan in sorted(plans) for line in plan),
            f"`{self.explained}`",
        )
        return f"| {' | '.join(map(str, cells))} |"


def _left_out(count: int) -> int:
    """How many of so many sorted figures are left out at each end of a 95% interval of their median; -1 for too few.

    Each of them is above the median with a probability of one half.
    """
    outside, out = 0, -1
    while 2 * (outside := outside + comb(count, out + 1)) <= 0.05 * 2**count:
        out += 1
    return out


def explained(program: str, kept: dict[str, str], *options: str) -> list[str]:
    """The lines of EXPLAIN, without estimates."""
    command = [*_OWN, "explain", program, *options]
    told = subprocess.run(command, env=os.environ | kept, capture_output=True, check=True).stdout.decode()
    return [" ".join(line.partition(" · est ")[0].split()) for line in told.splitlines()]


def measure(program: str, data: str, limit: int, pairs: int) -> Pairs:
    """Raises RuntimeError where a run fails, nothing was chosen by cost, or the two sides differ in an answer."""
    found: Pairs | None = None
    for number in range(pairs):
        with tempfile.TemporaryDirectory() as place:
            left, cache, rows = (Path(place) / name for name in ("left", "cache", "rows.jsonl"))
            kept = {"XDG_CACHE_HOME": str(left), "QPDSL_RUNS": f"{place}/runs", "OMP_NUM_THREADS": "1"}
            run = [*_OWN, "run", program, "--input", data, "--limit", str(limit), "--no-greedy", "--output", str(rows)]
            started(program, run, **kept)
            chosen, ruled = explained(program, kept), explained(program, kept, *_BY_RULES)
            if "chosen by cost" not in chosen[0]:
                raise RuntimeError(f"nothing was chosen by cost: {chosen[0]}")
            starts, answers = {}, set()
            for options in ((), _BY_RULES)[:: 1 if number % 2 == 0 else -1]:
                rows.unlink()
                shutil.rmtree(cache, ignore_errors=True)
                shutil.copytree(left, cache)
                own = kept | {"XDG_CACHE_HOME": str(cache)}
                starts[options] = started(" ".join([program, *options]), [*run, *options], **own)
                answers.add(rows.read_text("utf-8"))
            if len(answers) > 1:
                raise RuntimeError(f"{program} answers otherwise where its plan is chosen by cost")
        found = found or Pairs(program, chosen[0])
        changed = [line for line, other in zip_longest(chosen[1:], ruled[1:], fillvalue="") if line != other]
        found.pairs.append(
            Pair(starts[()], starts[_BY_RULES], [line for line in changed if not line.startswith("rows:")])
        )
    assert found is not None
    return found


def page(found: list[Pairs], limit: int) -> str:
    lines = [
        "# The second run on a new machine",
        "",
        f"The first {limit} rows, processor seconds by cost over those by rules alone: the median of the pairs and its "
        "interval.",
        "",
        "| program | pairs | processor time | verdict | plans that cost changed | after a first run |",
        "|---|---:|---:|---|---|---|",
        *(one.row for one in found),
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
