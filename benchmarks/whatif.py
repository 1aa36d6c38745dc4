"""Holds what `qpdsl whatif` answers against real runs, on random settings of shipped programs and idioms.

    python -m benchmarks.whatif [--settings 200] [--first 0] [--rows 2] [--jobs 2] [--output benchmarks/results]

A setting is a saved run with its values, and other values, or another program, that it is asked about. A row that is
answered must be the real run's in all that is recorded of it, seconds aside; one that is not must need a sample that
the real run draws and the saved one did not, and drawn with `--draw` it must be the real run's too.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import tempfile
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path

from benchmarks.common.folders import RESULTS
from benchmarks.common.machine import sentence
from qpdsl.runs.store.run_folder import VARIABLE
from tests.support.whatif_cases import Compared, compared, drawn_case

_HEAD = "| program | settings | rows answered | not answered | samples needed | different |\n|---|--:|--:|--:|--:|--:|"


def run(seed: int, rows: int) -> tuple[str, str, Compared]:
    """The program that the setting of a seed asks, the setting in words, and what came of it."""
    case = drawn_case(seed, rows)
    with tempfile.TemporaryDirectory() as folder:
        os.environ[VARIABLE] = folder
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return case.asked, case.name, compared(case, Path(folder), draws=seed % 4 == 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="the seed of the first one")
    parser.add_argument("--rows", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    found: dict[str, list[Compared]] = defaultdict(list)
    seeds = range(given.first, given.first + given.settings)
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
        for seed, (asked, name, own) in zip(seeds, pool.map(run, seeds, repeat(given.rows)), strict=True):
            found[asked].append(own)
            print(f"{seed}: {name}: {own.answered} answered, {own.open} not", flush=True)
            for difference in (*own.differences, *own.false):
                print(f"  {difference}", flush=True)
    (given.output / "whatif.md").write_text(report(found, given.rows), "utf-8")
    return int(any(own.differences or own.false for cases in found.values() for own in cases))


def report(found: dict[str, list[Compared]], rows: int) -> str:
    """The page of results."""
    lines = [_HEAD]
    every = [own for cases in found.values() for own in cases]
    for name, cases in [*sorted(found.items()), ("**all**", every)]:
        counts = (
            len(cases),
            sum(own.answered for own in cases),
            sum(own.open for own in cases),
            sum(own.missing for own in cases),
            sum(len(own.differences) + len(own.false) for own in cases),
        )
        lines.append(f"| {name} | {' | '.join(f'{count:,}' for count in counts)} |")
    return (
        "# What a saved run answers\n\n"
        f"`python -m benchmarks.whatif`: {len(every)} random settings, each of {rows} problems of `counting-500`, held "
        "against real runs. A setting is a saved run with its values, and other values or another program that it is "
        "asked about. *Different* counts rows that are answered otherwise than a real run answers them (answer, grade, "
        "columns, tokens), and rows that need samples which a real run would not draw. The programs without a folder "
        "at the end of the table are written for this, with what the shipped ones fix as parameters.\n\n"
        + "\n".join(lines)
        + f"\n\n{sentence()}\n"
    )


if __name__ == "__main__":
    raise SystemExit(main())
