"""The thesis' protocol: problems spread evenly over levels, at shares of the KV memory; accuracy and speed of each.

    python -m benchmarks.search.thesis --input math.jsonl --dataset math --model llm=FOLDER --model prm=FOLDER
                                       [--programs beam_search ...] [--problems 128] [--spread level]
                                       [--shares 0.08 0.16 0.25 0.33 0.5] [--memory 24GiB] [--device cuda]

A share is one of the device's memory, or of `--memory`. Each program runs at each share in a session of its own, so
that no cache is warm, and after a short run that is not measured. Tokens are those sampled. A processor second is one
of this process, in which other work on the machine does not count. Without `--input` the shipped problems and the
built-in models are taken; those need little memory, so `--memory` then has to be small for the shares to differ.
Writes `thesis.json` and `thesis.md` into the folder for results, after each run.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.folders import RESULTS
from benchmarks.common.machine import describe, sentence
from benchmarks.search.planned import DATA, Run, plan_of, run
from qpdsl.executor.engine.memory.budget import parse
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.runs.data.input_row import InputData
from qpdsl.runs.data.rows import read_rows
from qpdsl.runs.graders.grader import Grader
from qpdsl.runs.graders.known_graders import grader_named
from qpdsl.runs.statistics import wilson
from qpdsl.session.programs import input_path
from qpdsl.session.session import Session
from qpdsl.session.settings import DataSettings

NAME = "thesis"
SHARES = (0.08, 0.16, 0.25, 0.33, 0.5)
_HEAD = (
    "program",
    "share",
    "KV memory",
    "right",
    "95% interval",
    "failed",
    "tokens/s",
    "problems/s",
    "tokens/CPU s",
    "preempted",
)


@dataclass(frozen=True)
class Line:
    """A program at one share of the memory. `low` and `high` are the ends of the interval around `right` of `total`."""

    program: str
    share: float
    kv_bytes: int
    right: int
    total: int
    failed: int
    low: float
    high: float
    tokens_per_second: float
    problems_per_second: float
    tokens_per_cpu_second: float
    seconds: float
    preempted: int


def measured(
    program: str, plan: PhysicalPlan, data: InputData, share: float, settings: Mapping[str, Any], grader: Grader
) -> Line:
    """One run over all problems, at a share of the memory."""
    run(plan, data.rows[:1], session=Session(**settings))
    session = Session(**settings)
    done = run(plan, data.rows, session=session, grader=grader)
    return _line(program, share, session.kv_budget, done)


def _line(program: str, share: float, kv_bytes: int, done: Run) -> Line:
    right = sum(outcome.correct is True for outcome in done.outcomes)
    total = len(done.outcomes)
    tokens = sum(outcome.tokens_out for outcome in done.outcomes)
    interval = wilson(right, total)
    return Line(
        program,
        share,
        kv_bytes,
        right,
        total,
        sum(outcome.error is not None for outcome in done.outcomes),
        interval.low,
        interval.high,
        tokens / done.seconds,
        total / done.seconds,
        tokens / done.cpu_seconds,
        done.seconds,
        sum(model.preemptions for model in done.figures.models.values()),
    )


def page(record: Mapping[str, Any]) -> str:
    """The figures as a table in Markdown."""
    rows = [_HEAD, tuple("---" for _ in _HEAD), *map(_cells, record["lines"])]
    table = [f"| {' | '.join(row)} |" for row in rows]
    levels = ", ".join(f"{count} of {level}" for level, count in record["spread"].items())
    intro = f"{record['problems']} problems of {record['data']}, by `{record['field']}`: {levels}. Seed 0."
    return (
        "\n".join(
            ["# The thesis' protocol", "", intro, "", *table, "", f"Measured on: {record['machine']['sentence']}."]
        )
        + "\n"
    )


def _cells(line: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        line["program"],
        f"{line['share']:.2f}",
        f"{line['kv_bytes'] / 2**20:,.1f} MiB",
        f"{line['right']}/{line['total']} ({line['right'] / line['total']:.1%})",
        f"{line['low']:.1%} to {line['high']:.1%}",
        f"{line['failed']:,}",
        f"{line['tokens_per_second']:,.0f}",
        f"{line['problems_per_second']:.2f}",
        f"{line['tokens_per_cpu_second']:,.0f}",
        f"{line['preempted']:,}",
    )


def _read(arguments: argparse.Namespace, plan: PhysicalPlan) -> InputData:
    dataset = arguments.dataset or ("counting" if arguments.input == DATA else None)
    options = DataSettings(
        dataset=dataset, maps=tuple(arguments.map), spread=arguments.spread, limit=arguments.problems
    )
    return read_rows(input_path(arguments.input), plan, {}, options)


def _amount(share: float, memory: str | None) -> str | int:
    """What a session is told: bytes of `memory`, or a percentage of the device's."""
    return f"{share:.4%}" if memory is None else int(parse(memory) * share)


def _write(folder: Path, record: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{NAME}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    (folder / f"{NAME}.md").write_text(page(record), encoding="utf-8", newline="\n")


def _parsed(texts: Sequence[str]) -> dict[str, str]:
    return dict(text.split("=", 1) for text in texts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", default=DATA, help="a file of problems, in any format that qpdsl reads")
    parser.add_argument("--dataset", help="the benchmark that the file is, as of `qpdsl run --dataset`")
    parser.add_argument("--map", action="append", default=[], metavar="NAME=SOURCE", help="as of `qpdsl run --map`")
    parser.add_argument("--spread", default="level", help="the field that problems are spread over")
    parser.add_argument("--problems", type=int, default=128)
    parser.add_argument("--programs", nargs="+", default=["beam_search", "best_of_n", "self_consistency"])
    parser.add_argument("--model", action="append", default=[], metavar="NAME=ID", help="a model of the programs")
    parser.add_argument("--shares", nargs="+", type=float, default=SHARES)
    parser.add_argument("--memory", help="what shares are of, such as 24GiB; by default the device's memory")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--grader", help="by default that of --dataset")
    parser.add_argument("--output", type=Path, default=RESULTS, help="the folder for the results")
    arguments = parser.parse_args()
    models = _parsed(arguments.model)
    lines: list[Line] = []
    for program in arguments.programs:
        own = plan_of(program).models
        plan = plan_of(program, models={name: id_ for name, id_ in models.items() if name in own})
        data = _read(arguments, plan)
        grader = grader_named(arguments.grader or data.grader or "equal")
        for share in arguments.shares:
            settings = {"device": arguments.device, "kv_bytes": _amount(share, arguments.memory)}
            lines.append(measured(program, plan, data, share, settings, grader))
            print(f"  {lines[-1]}", flush=True)
            spread = Counter(str(row.fields.get(arguments.spread)) for row in data.rows)
            record = {
                "data": Path(arguments.input).name,
                "field": arguments.spread,
                "problems": len(data.rows),
                "spread": dict(sorted(spread.items())),
                "lines": list(map(asdict, lines)),
                "machine": {**describe(), "sentence": sentence()},
            }
            _write(arguments.output, record)
    print((arguments.output / f"{NAME}.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
