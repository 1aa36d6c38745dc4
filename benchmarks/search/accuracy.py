"""Right answers against tokens spent, of every search strategy, with a table and a picture.

    python -m benchmarks.search.run --only accuracy

Each strategy runs at several budgets over the shipped problems, in a session of its own, so that no cache is warm. What
has ended is written down at once: a run that was stopped goes on where it was.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
from matplotlib.ticker import PercentFormatter

from benchmarks.common.machine import describe, sentence
from benchmarks.search.planned import Run, problems, program, run
from benchmarks.search.tables import table
from qpdsl.arguments import with_defaults
from qpdsl.planner.optimize.optimizer import planned
from qpdsl.session.planning import reads_of

matplotlib.use("svg")

NAME = "search_accuracy"
# By strategy and budget: the number of solutions, or of partial solutions held side by side.
STRATEGIES: Mapping[str, Mapping[int, Mapping[str, int]]] = {
    "greedy": {1: {}},
    "self_consistency": {n: {"n": n} for n in (4, 16, 64)},
    "best_of_n": {n: {"n": n} for n in (4, 16, 64)},
    "weighted_best_of_n": {n: {"n": n} for n in (4, 16, 64)},
    "beam_search": {4 * w: {"width": w, "expand": 4} for w in (1, 4, 16)},
    "dvts": {4 * s: {"subtrees": s, "expand": 4} for s in (1, 4, 16)},
    "lookahead": {4 * w: {"width": w, "expand": 4} for w in (1, 4)},
    "rebase": {n: {"budget": n} for n in (4, 16, 64)},
}
# Colours that stay apart for the colour-blind (Okabe and Ito), each with a marker of its own.
_STYLES = {
    "greedy": ("#000000", "x"),
    "self_consistency": ("#E69F00", "o"),
    "best_of_n": ("#56B4E9", "s"),
    "weighted_best_of_n": ("#0072B2", "D"),
    "beam_search": ("#D55E00", "*"),
    "dvts": ("#009E73", "^"),
    "lookahead": ("#CC79A7", "v"),
    "rebase": ("#8C6D00", "P"),
}
_AXES = {
    "generator": "tokens through the generator",
    "spent": "tokens through generator and verifier",
    "seconds": "seconds",
}


@dataclass(frozen=True)
class Line:
    """A strategy at one budget. Tokens and seconds are a problem's mean.

    `right`: the share of right answers; `sampled`: tokens drawn for the rows of the search; `generator` and `verifier`:
    tokens that went through each model, prompts and what ran ahead for nothing included, what was cached not.
    `seconds` is wall time, `cpu_seconds` the process's own.
    """

    strategy: str
    budget: int
    values: Mapping[str, int]
    right: float
    sampled: float
    generator: float
    verifier: float
    seconds: float
    cpu_seconds: float

    @property
    def key(self) -> tuple[str, int]:
        return self.strategy, self.budget

    @property
    def spent(self) -> float:
        return self.generator + self.verifier


class Journal:
    """The lines of a run that has not ended yet, in a file of JSON lines under a head that says what is run."""

    def __init__(self, path: Path, head: Mapping[str, Any]) -> None:
        self.path = path
        self.lines: list[Line] = []
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        # A line that was cut off when the run was killed is none.
        records = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        if records and records[0] == head:
            self.lines = [Line(**record) for record in records[1:]]
        path.parent.mkdir(parents=True, exist_ok=True)
        self._write([head, *map(asdict, self.lines)], "w")

    def add(self, line: Line) -> None:
        self.lines.append(line)
        self._write([asdict(line)], "a")

    def _write(self, records: list[Mapping[str, Any]], mode: str) -> None:
        with self.path.open(mode, encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)
            file.flush()
            os.fsync(file.fileno())


def accuracy(count: int, budgets: int, folder: Path) -> None:
    """Runs what has not run yet over the first `count` problems, at the `budgets` smallest budgets of each strategy.

    Writes `search_accuracy.json`, `.md` and `.svg` into the folder when all of it has.
    """
    wanted = [(name, budget) for name, settings in STRATEGIES.items() for budget in list(settings)[:budgets]]
    journal = Journal(folder / f"{NAME}.journal", {"problems": count, "machine": describe()})
    if journal.lines:
        print(f"  going on: {len(journal.lines)} of {len(wanted)} had ended; to start over, remove {journal.path}")
    ended = {line.key for line in journal.lines}
    for name, budget in wanted:
        if (name, budget) not in ended:
            journal.add(_measured(name, budget, count))
            print(f"  {journal.lines[-1]}")
    by_key = {line.key: line for line in journal.lines}
    lines = [by_key[key] for key in wanted]
    record = {"problems": count, "machine": {**describe(), "sentence": sentence()}, "lines": list(map(asdict, lines))}
    (folder / f"{NAME}.json").write_text(json.dumps(record, indent=1) + "\n")
    show(folder)
    journal.path.unlink()


def show(folder: Path) -> None:
    """Writes table and picture from the figures in the folder, where there are any."""
    file = folder / f"{NAME}.json"
    if not file.is_file():
        return
    record = json.loads(file.read_text())
    lines = [Line(**line) for line in record["lines"]]
    text = "\n".join(_page(lines, record["problems"], record["machine"]["sentence"])) + "\n"
    (folder / f"{NAME}.md").write_text(text, encoding="utf-8", newline="\n")
    draw(lines, record["problems"], folder / f"{NAME}.svg")
    print(text)


def _measured(name: str, budget: int, count: int) -> Line:
    values = STRATEGIES[name][budget]
    lowered = with_defaults(program(name), dict(values))
    plan = planned(lowered, reads_of(lowered))
    strategy_run: Run = run(plan, problems(plan, count))
    tokens_of = {
        model: figures.prefill_tokens + figures.decode_tokens for model, figures in strategy_run.figures.models.items()
    }
    generator = tokens_of.pop(plan.models["llm"])
    return Line(
        name,
        budget,
        values,
        strategy_run.right,
        strategy_run.tokens,
        generator / count,
        sum(tokens_of.values()) / count,
        strategy_run.seconds / count,
        strategy_run.cpu_seconds / count,
    )


def _page(lines: list[Line], count: int, machine: str) -> Iterator[str]:
    yield f"# Right answers against tokens spent ({count} problems)"
    yield ""
    yield f"![right answers against tokens]({NAME}.svg)"
    yield ""
    head = ["strategy", "budget", "right", "sampled", "generator", "verifier", "both", "ms", "ms, process"]
    yield from table(head, [_row(line, count) for line in lines])
    yield ""
    yield (
        "A problem's mean of everything. Budget: solutions, or partial solutions held side by side. Right: with its "
        "standard error. Sampled: tokens drawn for the rows of the search. Generator and verifier: tokens that went "
        "through the model, prompts and what ran ahead for nothing included, what was cached not."
    )
    yield ""
    yield f"Written by `python -m benchmarks.search.run --only accuracy`. Measured on: {machine}."


def _row(line: Line, count: int) -> list[str]:
    error = math.sqrt(line.right * (1 - line.right) / count)
    tokens = (line.sampled, line.generator, line.verifier, line.spent)
    return [
        line.strategy,
        str(line.budget),
        f"{line.right:.1%} ± {error:.1%}",
        *(f"{spent:,.0f}" for spent in tokens),
        f"{1000 * line.seconds:,.0f}",
        f"{1000 * line.cpu_seconds:,.0f}",
    ]


def draw(lines: Sequence[Line], count: int, path: Path) -> None:
    """Writes right answers against what each strategy spent for them, as SVG, the same bytes for the same figures."""
    matplotlib.rcParams.update({"svg.hashsalt": "qpdsl", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3})
    picture, panels = plt.subplots(1, len(_AXES), figsize=(13, 4.8), layout="constrained", sharey=True)
    for axes, (figure, label) in zip(panels, _AXES.items(), strict=True):
        for name, (colour, marker) in _STYLES.items():
            own = [line for line in lines if line.strategy == name]
            axes.plot(
                [getattr(line, figure) for line in own],
                [line.right for line in own],
                color=colour,
                marker=marker,
                label=name.replace("_", " "),
            )
        axes.set_xscale("log")
        axes.set_xlabel(f"{label}, a problem")
    panels[0].yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    panels[0].set_ylabel(f"right, of {count} problems")
    picture.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(_STYLES))
    picture.savefig(path, format="svg", metadata={"Date": None}, facecolor="white")
    plt.close(picture)
