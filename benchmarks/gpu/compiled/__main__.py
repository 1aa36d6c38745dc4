"""Brings the table of compiled kernels up to date, or compares the kernels with it.

    python -m benchmarks.gpu.compiled [--only TEXT …] [--jobs N] [--again]
    python -m benchmarks.gpu.compiled --check [--all] [--only TEXT …] [--table FILE]

A kernel for which the compiler would be given what it was given before is not compiled again. `--check` ends with 1 and
names what got worse, what breaks a rule that holds for all kernels, and which variants the table lacks or has too many.
Where Triton is not the version that the table was made with, only the rules are checked.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import triton

from benchmarks.gpu.compiled.figures import Figures, faults
from benchmarks.gpu.compiled.launches import kernel_names
from benchmarks.gpu.compiled.table import FILE, Table, compared, read, write
from benchmarks.gpu.compiled.variants import all_figures, variants


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.compiled",
        description="Brings the table of compiled kernels up to date, or compares the kernels with it.",
    )
    parser.add_argument("--check", action="store_true", help="compare with the table, and change nothing")
    parser.add_argument("--all", action="store_true", help="with --check: every variant, not only the quick ones")
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT", help="rows whose names hold one of these")
    parser.add_argument("--again", action="store_true", help="compile what did not change too")
    parser.add_argument("--jobs", type=int, default=1, help="processes that compile (1)")
    parser.add_argument("--table", type=Path, default=FILE, help="the table, in JSON")
    options = parser.parse_args()
    if os.environ.get("TRITON_INTERPRET") == "1":
        parser.error("nothing is compiled under TRITON_INTERPRET=1")
    old = read(options.table)
    before = {row.name: row for row in old.rows}
    same = old.triton == triton.__version__
    wanted = variants()
    chosen = [
        variant
        for variant in wanted
        if any(text in variant.name for text in options.only) and (variant.quick or options.all or not options.check)
    ]
    known = before if same and not options.again else {}
    waiting = [v for v in chosen if v.name not in known or known[v.name].key != v.launch.key]
    rows = {**before, **{row.name: row for row in all_figures(waiting, options.jobs)}}
    used = os.times()
    seconds = used.user + used.system + used.children_user + used.children_system
    print(f"{len(chosen)} variants, {len(waiting)} compiled, {seconds:.0f} CPU seconds", file=sys.stderr)
    if options.check:
        idle = kernel_names() - {v.launch.kernel for v in wanted}
        return check(old, same, [v.name for v in wanted], [rows[v.name] for v in chosen], idle)
    table = Table(triton.__version__, tuple(rows[v.name] for v in wanted if v.name in rows))
    for verdict, lines in zip(("worse", "better"), compared(old, table.rows), strict=True):
        for line in lines:
            print(f"{verdict}: {line}")
    write(table, options.table)
    return 0


def check(old: Table, same: bool, names: list[str], rows: list[Figures], idle: set[str]) -> int:
    """Prints what is wrong with `rows`, of all the variants `names`; 1 if anything is.

    same: the table was made by the same Triton
    idle: kernels that no case launches
    """
    lines = [f"{row.name}: {fault}" for row in rows for fault in faults(row)]
    lines += [f"{kernel}: no case of `cases.py` launches it" for kernel in sorted(idle)]
    if same:
        lines += compared(old, rows)[0]
        there = {row.name for row in old.rows}
        lines += [f"{name}: is not in the table" for name in names if name not in there]
        lines += [f"{name}: is in the table, and nothing launches it" for name in sorted(there - set(names))]
    for line in lines:
        print(line)
    if lines:
        print("`python -m benchmarks.gpu.compiled` writes the table anew, where this is meant")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
