"""The table and the picture of `budget.py`, from its figures."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Self

import matplotlib
import matplotlib.pyplot as plt
from matplotlib.ticker import PercentFormatter

from benchmarks.search.half_runs import HalfRun
from benchmarks.search.tables import table
from qpdsl.measures.statistics.intervals import wilson

matplotlib.use("svg")

NAME = "budget"


@dataclass(frozen=True)
class Line:
    """What something came to over both halves: the share of right answers, and tokens drawn a problem.

    `budget` is None for a fixed strategy. `expected` is what was said of a policy beforehand, from problems held out of
    the half that it was learned from.
    """

    name: str
    right: float
    drawn: float
    budget: float | None = None
    expected: float | None = None

    @classmethod
    def of(cls, name: str, halves: Sequence[HalfRun], **more: float) -> Self:
        correct = [right for half in halves for right in half.correct]
        return cls(name, fmean(correct), fmean(tokens for half in halves for tokens in half.tokens), **more)


@dataclass(frozen=True)
class Figures:
    """Of so many problems, on this machine: the fixed strategies, and the budgeted program at each budget."""

    problems: int
    machine: str
    fixed: Sequence[Line]
    budgeted: Sequence[Line]

    def front(self, drawn: float) -> float:
        """The greatest share of right answers that fixed strategies have for this many tokens a problem.

        Between two of them it is that of a mix, which answers some problems by the one and the others by the other.
        """
        known = [(line.drawn, line.right) for line in self.fixed]
        cheaper = [point for point in known if point[0] <= drawn]
        dearer = [point for point in known if point[0] > drawn]
        mixed = [low + (high - low) * (drawn - start) / (end - start) for start, low in cheaper for end, high in dearer]
        return max([right for _, right in cheaper] + mixed, default=0.0)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Figures:
        lines = {name: [Line(**line) for line in record[name]] for name in ("fixed", "budgeted")}
        return cls(record["problems"], record["machine"], lines["fixed"], lines["budgeted"])


def show(folder: Path) -> None:
    """Writes table and picture from the figures in the folder."""
    figures = Figures.from_json(json.loads((folder / f"{NAME}.json").read_text(encoding="utf-8")))
    text = "\n".join(_page(figures)) + "\n"
    (folder / f"{NAME}.md").write_text(text, encoding="utf-8", newline="\n")
    _draw(figures, folder / f"{NAME}.svg")
    print(text)


def _page(figures: Figures) -> Iterator[str]:
    count = figures.problems
    yield f"# Compute-optimal search ({count} problems)"
    yield ""
    yield f"![right answers against tokens drawn]({NAME}.svg)"
    yield ""
    yield "## The budgeted program"
    yield ""
    rows = [
        [
            f"{line.budget:,.0f}",
            f"{line.drawn:,.0f}",
            _share(line.right, count),
            f"{line.expected:.1%}" if line.expected is not None else "",
            f"{figures.front(line.drawn):.1%}",
            f"{100 * (line.right - figures.front(line.drawn)):+.1f}",
        ]
        for line in figures.budgeted
    ]
    yield from table(["budget", "drawn", "right (95%)", "expected", "fixed front there", "points over it"], rows)
    yield ""
    yield (
        "`compute_optimal` with a budget of so many sampled tokens a problem. Each half of the problems was answered "
        "by the policy that was learned on the other half. Expected: what the policy's half itself says, by "
        "cross-validation. Fixed front: the best that fixed strategies, or a mix of two of them, have for as many "
        "tokens as were drawn."
    )
    yield ""
    yield "## Fixed strategies"
    yield ""
    fixed = sorted(figures.fixed, key=lambda line: line.drawn)
    yield from table(
        ["strategy", "drawn", "right (95%)"],
        [[line.name, f"{line.drawn:,.0f}", _share(line.right, count)] for line in fixed],
    )
    yield ""
    yield "The ways of `compute_optimal` with a number of subtrees are `dvts` with four steps tried in each."
    yield ""
    yield f"Written by `python -m benchmarks.search.budget`. Measured on: {figures.machine}."


def _share(right: float, count: int) -> str:
    interval = wilson(round(right * count), count)
    return f"{right:.1%} ({interval.low:.1%} to {interval.high:.1%})"


def _draw(figures: Figures, path: Path) -> None:
    """Writes right answers against tokens drawn as SVG, the same bytes for the same figures."""
    matplotlib.rcParams.update({"svg.hashsalt": "qpdsl", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3})
    picture, axes = plt.subplots(figsize=(7, 4.6), layout="constrained")
    axes.scatter(
        [line.drawn for line in figures.fixed],
        [line.right for line in figures.fixed],
        color="#56B4E9",
        label="fixed strategies",
    )
    ends = sorted(line.drawn for line in figures.fixed)
    axes.plot(ends, [figures.front(drawn) for drawn in ends], color="#56B4E9", label="their front")
    axes.plot(
        [line.drawn for line in figures.budgeted],
        [line.right for line in figures.budgeted],
        color="#D55E00",
        marker="*",
        label="under a budget",
    )
    axes.set_xscale("log")
    axes.set_xlabel("tokens drawn a problem")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_ylabel(f"right, of {figures.problems} problems")
    axes.legend()
    picture.savefig(path, format="svg", metadata={"Date": None}, facecolor="white")
    plt.close(picture)
