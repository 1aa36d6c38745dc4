"""Fuzzes the language: drawn programs and stages, and mutations of them, through parser, checker and formatter.

    python -m benchmarks.fuzz [--inputs 1000000] [--seed 0] [--jobs 2] [--output benchmarks/results]

Each input must give a program or diagnostics that point into it, and a text that parses must keep its tree and its
comments when it is formatted. Anything else is an exception: it is printed with what it takes to draw the input again.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.common.folders import RESULTS
from benchmarks.common.machine import describe, sentence
from tests.support.grammar.fuzzing import examine
from tests.support.grammar.random_programs import ProgramGenerator, mutated, random_program

CHUNK = 1_000
SHOWN = 20
# Of forty inputs: one program, three mutated programs, sixteen stages, twenty mutated stages.
KINDS = ["program", *["program mutated"] * 3, *["stage"] * 16, *["stage mutated"] * 20]


@dataclass
class Tally:
    """What came of some inputs."""

    inputs: int = 0
    parsed: int = 0
    checked: int = 0
    diagnostics: Counter[str] = field(default_factory=Counter)
    exceptions: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.inputs += other.inputs
        self.parsed += other.parsed
        self.checked += other.checked
        self.diagnostics += other.diagnostics
        self.exceptions += other.exceptions


def text_of(kind: str, seed: int) -> str:
    text = random_program(seed) if kind.startswith("program") else ProgramGenerator(seed).stage(0)
    return mutated(text, seed) if kind.endswith("mutated") else text


def run(seeds: range) -> Tally:
    tally = Tally()
    for seed in seeds:
        kind = KINDS[seed % len(KINDS)]
        text = text_of(kind, seed)
        tally.inputs += 1
        try:
            outcome = examine(text, pipeline=kind.startswith("stage"))
            if not outcome.parsed and not kind.endswith("mutated"):
                raise AssertionError("a well-formed text does not parse")
        except Exception:
            tally.exceptions.append(f"{kind}, seed {seed}:\n{traceback.format_exc(limit=-4)}")
            continue
        tally.parsed += outcome.parsed
        tally.checked += outcome.checked
        tally.diagnostics.update(outcome.codes)
    return tally


def chunks(first: int, count: int) -> Iterator[range]:
    for start in range(first, first + count, CHUNK):
        yield range(start, min(start + CHUNK, first + count))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0, help="the first seed; input i is drawn from seed + i")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()

    started, tally = time.perf_counter(), Tally()
    with ProcessPoolExecutor(options.jobs) as pool:
        for done in pool.map(run, chunks(options.seed, options.inputs)):
            tally.add(done)
            if sys.stderr.isatty():
                print(f"\r{tally.inputs:,} inputs, {len(tally.exceptions)} exceptions", end="", file=sys.stderr)
    seconds = time.perf_counter() - started

    result = {
        "inputs": tally.inputs,
        "first_seed": options.seed,
        "programs": tally.parsed,
        "programs_without_errors": tally.checked,
        "diagnostics": dict(sorted(tally.diagnostics.items())),
        "exceptions": len(tally.exceptions),
        "seconds": round(seconds, 1),
        "jobs": options.jobs,
        "machine": describe(),
    }
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "fuzz.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(
        f"{tally.inputs:,} inputs in {seconds:,.0f} s: {tally.parsed:,} parse, {tally.checked:,} have no error, "
        f"{tally.diagnostics.total():,} diagnostics of {len(tally.diagnostics)} codes, "
        f"{len(tally.exceptions)} exceptions"
    )
    print(sentence())
    for exception in tally.exceptions[:SHOWN]:
        print(f"\n{exception}", file=sys.stderr)
    return 1 if tally.exceptions else 0


if __name__ == "__main__":
    sys.exit(main())
