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
from qpdsl.runs.plots import on_front
from qpdsl.runs.statistics import paired_test
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
# Those that take long run over the first problems alone at the greatest budget.
_FEWER = {(name, 64): 200 for name in ("particle_filter", "puct", "ab_mcts", "ab_mcts_m")}
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
    is how many ran, and `verdicts` has a 1 for each that was right and a 0 for each that was not, in their order; empty
    where an earlier run did not say.
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
    problems: int = 500
    verdicts: str = ""

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


def accuracy(
    count: int, budgets: int, folder: Path, strategies: Collection[str] | None = None, *, untimed: bool = False
) -> None:
    """Runs what has not run yet over the first `count` problems, at the `budgets` smallest budgets of each strategy.

    Writes `search_accuracy.json`, `.md` and `.svg` into the folder when all of it has. `untimed` keeps no seconds but
    those that an earlier run, which came to the same, had.
    """
    listed = [(name, budget) for name, settings in STRATEGIES.items() for budget in list(settings)[:budgets]]
    wanted = [key for key in listed if strategies is None or key[0] in strategies]
    wanted.sort(key=lambda key: key[1])
    earlier = {line.key: line for line in _earlier(folder, count)}
    journal = Journal(folder / f"{NAME}.journal", {"problems": count, "machine": describe()})
    if journal.lines:
        print(f"  going on: {len(journal.lines)} of {len(wanted)} had ended; to start over, remove {journal.path}")
    ended = {line.key for line in journal.lines}
    for key in wanted:
        if key not in ended:
            line = _measured(*key, min(count, _FEWER.get(key, count)))
            journal.add(_untimed(line, earlier.get(key)) if untimed else line)
            print(f"  {journal.lines[-1]}", flush=True)
    by_key = {**earlier, **{line.key: line for line in journal.lines}}
    lines = [by_key[key] for key in listed if key in by_key]
    record = {"problems": count, "machine": {**describe(), "sentence": sentence()}, "lines": list(map(asdict, lines))}
    (folder / f"{NAME}.json").write_text(json.dumps(record, indent=1) + "\n")
    show(folder)
    journal.path.unlink()


def _earlier(folder: Path, count: int) -> list[Line]:
    """What an earlier run over as many problems has written."""
    file = folder / f"{NAME}.json"
    record = json.loads(file.read_text()) if file.is_file() else {}
    return [Line(**line) for line in record["lines"]] if record.get("problems") == count else []


def _untimed(line: Line, earlier: Line | None) -> Line:
    same = earlier is not None and (earlier.right, earlier.sampled, earlier.generator, earlier.verifier) == (
        *(line.right, line.sampled, line.generator, line.verifier),
    )
    if earlier is not None and same:
        return replace(line, seconds=earlier.seconds, cpu_seconds=earlier.cpu_seconds)
    return replace(line, seconds=None, cpu_seconds=None)


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
        "".join("01"[outcome.correct is True] for outcome in strategy_run.outcomes),
    )


def _page(lines: list[Line], count: int, machine: str) -> Iterator[str]:
    yield f"# Right answers against tokens spent ({count} problems)"
    yield ""
    yield f"![right answers against tokens]({NAME}.svg)"
    yield ""
    head = ["strategy", "budget", "problems", "right", f"points over {_BASE.replace('_', ' ')}", "front"]
    head += ["sampled", "generator", "verifier", "both", "ms", "ms, process"]
    by_key = {line.key: line for line in lines}
    whole = [line for line in lines if line.problems == count]
    front = dict(zip([line.key for line in whole], on_front([(line.spent, line.right) for line in whole]), strict=True))
    yield from table(head, [_row(line, by_key.get((_BASE, line.budget)), front.get(line.key)) for line in lines])
    yield ""
    base = _BASE.replace("_", " ")
    yield (
        "A problem's mean of everything. Budget: solutions, or partial solutions held side by side. Right: with its "
        f"standard error. Points: the difference to {base} at the same budget on the same problems, with its 95% "
        "interval (Agresti and Min, 2005) and McNemar's p, where both runs kept which were right. Front: no other "
        "strategy is as right for fewer tokens of both models; open where not all problems ran. Sampled: tokens drawn "
        "for the rows of the search. Generator and verifier: tokens that went through the model, prompts and what ran "
        "ahead for nothing included, what was cached not. No ms: the machine was not that run's alone."
    )
    yield ""
    yield f"Written by `python -m benchmarks.search.run --only accuracy`. Measured on: {machine}."


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


def draw(lines: Sequence[Line], count: int, path: Path) -> None:
    """Writes right answers against what each strategy spent for them, as SVG, the same bytes for the same figures."""
    matplotlib.rcParams.update({"svg.hashsalt": "qpdsl", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3})
    picture, panels = plt.subplots(1, len(_AXES), figsize=(13, 4.8), layout="constrained", sharey=True)
    for axes, (figure, label) in zip(panels, _AXES.items(), strict=True):
        for name, (colour, marker) in _STYLES.items():
            own = [line for line in lines if line.strategy == name and getattr(line, figure) is not None]
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
    picture.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=6)
    picture.savefig(path, format="svg", metadata={"Date": None}, facecolor="white")
    plt.close(picture)
