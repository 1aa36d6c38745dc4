"""Right answers against tokens spent, of every search strategy, with a table and a picture.

    python -m benchmarks.search.run --only accuracy [--strategies puct ab_mcts …] [--untimed]

Each strategy runs at several budgets over the shipped problems, in a session of its own, so that no cache is warm. What
has ended is written down at once: a run that was stopped goes on where it was. With `--strategies` these alone run, and
what is known of the others stays.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
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
from qpdsl.runs.statistics import on_front, paired_test
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
    "particle_filter": {n: {"n": n} for n in (4, 16, 64)},
    "puct": {4 * s: {"simulations": s, "expand": 4} for s in (1, 4, 16)},
    "ab_mcts": {s: {"simulations": s} for s in (4, 16, 64)},
    "ab_mcts_m": {s: {"simulations": s} for s in (4, 16, 64)},
}
# What the others are compared with, at equal budgets.
_BASE = "beam_search"
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
    "particle_filter": ("#999999", "p"),
    "puct": ("#882255", "h"),
    "ab_mcts": ("#117733", "<"),
    "ab_mcts_m": ("#332288", ">"),
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
    `seconds` is wall time, `cpu_seconds` the process's own, None where the machine was not this run's alone. `problems`
    is how many ran, on the `machine`, and `verdicts` has a 1 for each that was right and a 0 for each that was not, in
    their order; empty where an earlier run did not say.
    """

    strategy: str
    budget: int
    values: Mapping[str, int]
    right: float
    sampled: float
    generator: float
    verifier: float
    seconds: float | None
    cpu_seconds: float | None
    problems: int
    machine: str
    verdicts: str = ""

    @property
    def key(self) -> tuple[str, int, int]:
        return self.strategy, self.budget, self.problems

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


def accuracy(
    count: int, budgets: int, folder: Path, strategies: Collection[str] | None = None, *, untimed: bool = False
) -> None:
    """Runs what has not run yet over the first `count` problems, at the `budgets` smallest budgets of each strategy.

    Writes `search_accuracy.json`, `.md` and `.svg` into the folder when all of it has. `untimed` keeps no seconds.
    """
    listed = [(name, budget) for name, settings in STRATEGIES.items() for budget in list(settings)[:budgets]]
    wanted = [(name, budget, count) for name, budget in listed if strategies is None or name in strategies]
    journal = Journal(folder / f"{NAME}.journal", {"problems": count, "machine": describe()})
    if journal.lines:
        print(f"  going on: {len(journal.lines)} of {len(wanted)} had ended; to start over, remove {journal.path}")
    ended = {line.key for line in journal.lines}
    for name, budget, _ in sorted(wanted, key=lambda key: key[1]):
        if (name, budget, count) not in ended:
            line = _measured(name, budget, count)
            journal.add(replace(line, seconds=None, cpu_seconds=None) if untimed else line)
            print(f"  {journal.lines[-1]}", flush=True)
    write(journal.lines, folder)
    journal.path.unlink()


def write(lines: Sequence[Line], folder: Path) -> None:
    """Writes these lines, in the places of the same ones of earlier runs, and what is known besides."""
    file = folder / f"{NAME}.json"
    earlier = [Line(**line) for line in json.loads(file.read_text())["lines"]] if file.is_file() else []
    by_key = {line.key: line for line in (*earlier, *lines)}
    order = [(name, budget) for name, settings in STRATEGIES.items() for budget in settings]
    known = sorted(by_key.values(), key=lambda line: (order.index((line.strategy, line.budget)), -line.problems))
    file.write_text(json.dumps({"lines": list(map(asdict, known))}, indent=1) + "\n")
    show(folder)


def show(folder: Path) -> None:
    """Writes table and picture from the figures in the folder, where there are any."""
    file = folder / f"{NAME}.json"
    if not file.is_file():
        return
    record = json.loads(file.read_text())
    lines = [Line(**line) for line in record["lines"]]
    text = "\n".join(_page(lines)) + "\n"
    (folder / f"{NAME}.md").write_text(text, encoding="utf-8", newline="\n")
    draw(lines, folder / f"{NAME}.svg")
    print(text)


def _measured(name: str, budget: int, count: int) -> Line:
    values = STRATEGIES[name][budget]
    own = Path(__file__).with_name(f"{name}.qp")
    lowered = with_defaults(program(str(own) if own.is_file() else name), dict(values))
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
        count,
        sentence(),
        "".join("01"[outcome.correct is True] for outcome in strategy_run.outcomes),
    )


def _page(lines: list[Line]) -> Iterator[str]:
    base = _BASE.replace("_", " ")
    yield "# Right answers against tokens spent"
    yield ""
    yield f"![right answers against tokens]({NAME}.svg)"
    yield ""
    head = ["strategy", "budget", "problems", "right", f"points over {base}", "front"]
    head += ["sampled", "generator", "verifier", "both", "ms", "ms, process"]
    bases = {line.budget: line for line in lines if line.strategy == _BASE and line.verdicts}
    yield from table(head, [_row(line, bases.get(line.budget), _is_on_front(line, lines)) for line in lines])
    yield ""
    yield (
        "A problem's mean of everything. Budget: solutions, or partial solutions held side by side. Problems: the "
        "first so many of the 500. Right: with its standard error. Points: the difference to "
        f"{base} at the same budget on the problems that both ran, with its 95% interval (Agresti and Min, 2005) and "
        "McNemar's p, where both runs kept which were right. Front: of those lines that ran all its problems, none is "
        "as right on them for fewer tokens of both models. Sampled: "
        "tokens drawn for the rows of the search. Generator and verifier: tokens that went through the model, prompts "
        "and what ran ahead for nothing included, what was cached not. No ms: the machine was not that run's alone."
    )
    yield ""
    yield "Written by `python -m benchmarks.search.run --only accuracy`. Measured on:"
    yield ""
    for machine in dict.fromkeys(line.machine for line in lines):
        own = dict.fromkeys(f"{line.strategy} ({line.problems})" for line in lines if line.machine == machine)
        yield f"- {machine}: {', '.join(own)}."


def _is_on_front(line: Line, lines: Sequence[Line]) -> bool | None:
    """Whether no line that ran all its problems is as right on them for fewer tokens; None where that is not known."""
    if not line.verdicts:
        return None
    others = [other for other in lines if len(other.verdicts) >= line.problems]
    points = [(other.spent, float(other.verdicts[: line.problems].count("1"))) for other in others]
    return on_front(points)[others.index(line)]


def _row(line: Line, base: Line | None, front: bool | None) -> list[str]:
    error = math.sqrt(line.right * (1 - line.right) / line.problems)
    tokens = (line.sampled, line.generator, line.verifier, line.spent)
    return [
        line.strategy,
        str(line.budget),
        str(line.problems),
        f"{line.right:.1%} ± {error:.1%}",
        _against(line, base),
        "" if front is None else "yes" if front else "no",
        *(f"{spent:,.0f}" for spent in tokens),
        *("" if seconds is None else f"{1000 * seconds:,.0f}" for seconds in (line.seconds, line.cpu_seconds)),
    ]


def _against(line: Line, base: Line | None) -> str:
    """The difference to another line over the problems that both ran, in points; empty where that is not known."""
    if base is None or line.strategy == base.strategy or not (line.verdicts and base.verdicts):
        return ""
    both = min(line.problems, base.problems)
    first, second = ([verdict == "1" for verdict in one.verdicts[:both]] for one in (base, line))
    paired = paired_test(first, second)
    points = (100 * value for value in (paired.difference, paired.interval.low, paired.interval.high))
    difference, low, high = points
    return f"{difference:+.1f} ({low:+.1f} to {high:+.1f}), p {paired.p_value:.2g}"


def draw(lines: Sequence[Line], path: Path) -> None:
    """Writes right answers against what each strategy spent for them, as SVG, the same bytes for the same figures."""
    matplotlib.rcParams.update({"svg.hashsalt": "qpdsl", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3})
    picture, panels = plt.subplots(1, len(_AXES), figsize=(13, 4.8), layout="constrained", sharey=True)
    for axes, (figure, label) in zip(panels, _AXES.items(), strict=True):
        for name, (colour, marker) in _STYLES.items():
            # Of two lines at one budget the first is that over more problems.
            most = {line.budget: line for line in reversed(lines) if line.strategy == name}
            own = [line for _, line in sorted(most.items()) if getattr(line, figure) is not None]
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
    panels[0].set_ylabel("right")
    picture.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=6)
    picture.savefig(path, format="svg", metadata={"Date": None}, facecolor="white")
    plt.close(picture)
