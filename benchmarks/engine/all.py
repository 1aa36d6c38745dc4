"""All benchmarks of the engine on this machine's processor, one after the other.

    python -m benchmarks.engine.all [--only decode mixed ...] [--repeats 3] [--threads 1] [--peers ...] [--quick]

Each writes its JSON and its table into `results/` as it ends, so that a run cut short keeps what it has; then one table
of all goals, met or missed, in `results/engine.md`.
"""

from __future__ import annotations

import json
import tempfile
import traceback
from pathlib import Path

from benchmarks.common.results import Goal, goal_table, machine_line, write
from benchmarks.common.settings import parser, settings_of
from benchmarks.engine import decode, fanout, kv_types, mixed, oversubscribed, prefix, shared_budget

BENCHMARKS = {
    "decode": decode.bench,
    "fanout": fanout.bench,
    "mixed": mixed.bench,
    "prefix": prefix.bench,
    "oversubscribed": oversubscribed.bench,
    "shared_budget": shared_budget.bench,
    "kv_types": kv_types.bench,
}


def reached(output: Path, name: str) -> list[Goal]:
    """The goals that a benchmark has written down, those of an earlier run where it did not run now."""
    file = output / f"{name}.json"
    if not file.is_file():
        return []
    goals = json.loads(file.read_text(encoding="utf-8")).get("goals", [])
    return [Goal(f"{name}: {goal['what']}", goal["goal"], goal["reached"]) for goal in goals]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--only", nargs="+", choices=list(BENCHMARKS), default=list(BENCHMARKS))
    arguments = options.parse_args()
    failed = []
    for name in arguments.only:
        print(f"\n== {name}\n", flush=True)
        with tempfile.TemporaryDirectory() as scratch:
            try:
                BENCHMARKS[name](settings_of(arguments, Path(scratch)))
            except Exception:  # the others are still to be measured
                traceback.print_exc()
                failed.append(name)
    goals = [goal for name in BENCHMARKS for goal in reached(arguments.output, name)]
    text = f"# The engine's goals on a processor\n\n{goal_table(goals)}\n\n{machine_line()}\n"
    write(arguments.output, "engine", text, {}, goals)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
