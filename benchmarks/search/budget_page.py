"""The table and the picture of `budget.py`, from its figures."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Self

import matplotlib
import matplotlib.pyplot as plt
from matplotlib.ticker import PercentFormatter

from benchmarks.search.part_runs import PartRun
from benchmarks.search.tables import table
from qpdsl.runs.statistics import Interval, paired_values, wilson

matplotlib.use("svg")

NAME = "budget"


@dataclass(frozen=True)
class Line:
    """What something came to over both halves: the share of right answers, and tokens drawn a problem.

    `budget` is None for a fixed strategy. `expected` is what was said of a policy beforehand, from problems held out of
    the half that it was learned from. `read`: tokens that verifiers read, a problem. `verdicts` has a `1` for each
    problem that is right and a `0` for each other, the first half before the second. Both are None in records of
    before they were kept.
    """

    name: str
    right: float
    drawn: float
    budget: float | None = None
    expected: float | None = None
    read: float | None = None
    verdicts: str | None = None

    @classmethod
    def of(cls, name: str, halves: Sequence[PartRun], **more: float) -> Self:
        correct = [right for half in halves for right in half.correct]
        return cls(
            name,
            fmean(correct),
            fmean(tokens for half in halves for tokens in half.tokens),
            read=sum(half.read for half in halves) / len(correct),
            verdicts="".join("01"[right] for right in correct),
            **more,
        )

    def cost(self, *, read: bool) -> float | None:
        """Tokens drawn a problem, with those `read` by verifiers too where that is asked; None where not known."""
        if not read:
            return self.drawn
        return None if self.read is None else self.drawn + self.read


@dataclass(frozen=True)
class Mix:
    """A fixed strategy, or two of them of which `share` of the problems are answered by the second."""

    first: Line
    second: Line
    share: float

    @property
    def right(self) -> float:
        return (1 - self.share) * self.first.right + self.share * self.second.right

    @property
    def shares(self) -> list[float] | None:
        """How likely each problem is answered right; None where that is not recorded."""
        if self.first.verdicts is None or self.second.verdicts is None:
            return None
        pairs = zip(self.first.verdicts, self.second.verdicts, strict=True)
        return [(1 - self.share) * int(one) + self.share * int(other) for one, other in pairs]


@dataclass(frozen=True)
class Figures:
    """Of so many problems, on this machine: the fixed strategies, and the budgeted program at each budget."""

    problems: int
    machine: str
    fixed: Sequence[Line]
    budgeted: Sequence[Line]

    @property
    def reads(self) -> bool:
        """Whether it is known what verifiers read."""
        return all(line.read is not None for line in (*self.fixed, *self.budgeted))

    def front(self, cost: float, *, read: bool = False) -> Mix | None:
        """What has the most right answers of fixed strategies, and mixes of two, at this many tokens a problem.

        A mix answers some problems by the one and the others by the other. None where all fixed strategies take more.
        """
        known = [(line, own) for line in self.fixed if (own := line.cost(read=read)) is not None]
        cheaper = [(line, own) for line, own in known if own <= cost]
        dearer = [(line, own) for line, own in known if own > cost]
        mixes = [Mix(line, line, 0.0) for line, _ in cheaper]
        mixes += [Mix(low, high, (cost - start) / (end - start)) for low, start in cheaper for high, end in dearer]
        return max(mixes, key=lambda mix: mix.right, default=None)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Figures:
        lines = {name: [Line(**line) for line in record[name]] for name in ("fixed", "budgeted")}
        return cls(record["problems"], record["machine"], lines["fixed"], lines["budgeted"])


@dataclass(frozen=True)
class Gain:
    """By how much a budgeted line has more right answers than a mix of fixed strategies, in shares of 1.

    `p_value` is that of a permutation test over problems; None where the verdicts by problem are not recorded. Then the
    interval is that of two samples that have nothing to do with each other.
    """

    difference: float
    interval: Interval
    p_value: float | None


def gain(line: Line, mix: Mix, problems: int) -> Gain:
    """How a budgeted line compares to a mix, problem by problem where the verdicts are recorded."""
    shares = mix.shares
    if line.verdicts is not None and shares is not None:
        paired = paired_values(shares, [float(verdict) for verdict in line.verdicts])
        return Gain(paired.difference, paired.interval, paired.p_value)
    own, other = (wilson(round(right * problems), problems) for right in (line.right, mix.right))
    difference = line.right - mix.right
    low = math.hypot(line.right - own.low, other.high - mix.right)
    high = math.hypot(own.high - line.right, mix.right - other.low)
    return Gain(difference, Interval(difference - low, difference + high), None)


def show(folder: Path) -> None:
    """Writes table and picture from the figures in the folder."""
    figures = Figures.from_json(json.loads((folder / f"{NAME}.json").read_text(encoding="utf-8")))
    text = "\n".join(page(figures)) + "\n"
    (folder / f"{NAME}.md").write_text(text, encoding="utf-8", newline="\n")
    _draw(figures, folder / f"{NAME}.svg")
    print(text)


def page(figures: Figures) -> Iterator[str]:
    """The lines of the page."""
    yield f"# Compute-optimal search ({figures.problems} problems)"
    yield ""
    yield f"![right answers against tokens drawn]({NAME}.svg)"
    yield ""
    yield "## The budgeted program"
    yield ""
    yield from _budgeted(figures, read=False)
    yield ""
    yield (
        "`compute_optimal` with a budget of so many sampled tokens a problem. Each half of the problems was answered "
        "by the policy that was learned on the other half. Expected: what the policy's half itself says, by "
        "cross-validation, which is optimistic where the budget is tight. Fixed front: the best that fixed strategies, "
        "or a mix of two of them, have for as many tokens as were drawn. They were chosen with hindsight on these "
        "problems, in the favour of the front; learning ran every strategy on 250 problems, which is not counted."
    )
    yield ""
    if all(line.verdicts is not None for line in (*figures.fixed, *figures.budgeted)):
        yield (
            "Points over it are compared problem by problem, with a bootstrap's interval and the p-value of a "
            "permutation test."
        )
    else:
        yield (
            "**What is missing.** This record has no verdicts by problem, so points over it have the interval of two "
            "independent samples (Newcombe, 1998, method 10). The same problems were answered with the same random "
            "numbers, so a paired one should be narrower. Where it holds 0 the record does not show a difference. The "
            "next run of the benchmark records verdicts, and compares by problem."
        )
    yield ""
    yield "## With what verifiers read"
    yield ""
    if figures.reads:
        yield from _budgeted(figures, read=True)
        yield ""
        yield (
            "The same, where a token that the verifier reads counts as much as one that is sampled. It reads a text "
            "whole for each score, as an API would bill it; what it finds in its cache is not taken off."
        )
    else:
        yield (
            "This record has sampled tokens only. The verifier (4.4 million parameters) is larger than the model that "
            "samples (2.6 million), and greedy decoding and self-consistency do without it: every strategy that asks "
            "it, and the budgeted program, costs more beside these two than the tables say. The next run of the "
            "benchmark counts what it reads."
        )
    yield ""
    yield "## Fixed strategies"
    yield ""
    fixed = sorted(figures.fixed, key=lambda line: line.drawn)
    more = ["read"] if figures.reads else []
    yield from table(
        ["strategy", "drawn", *more, "right (95%)"],
        [
            [
                line.name,
                f"{line.drawn:,.0f}",
                *([f"{line.read:,.0f}"] if figures.reads else []),
                _share(line.right, figures.problems),
            ]
            for line in fixed
        ],
    )
    yield ""
    yield "The ways of `compute_optimal` with a number of subtrees are `dvts` with four steps tried in each."
    yield ""
    yield f"Written by `python -m benchmarks.search.budget`. Measured on: {figures.machine}."


def _budgeted(figures: Figures, *, read: bool) -> Iterator[str]:
    rows = []
    for line in figures.budgeted:
        cost = line.cost(read=read)
        mix = None if cost is None else figures.front(cost, read=read)
        rows.append(
            [
                f"{line.budget:,.0f}",
                f"{cost:,.0f}",
                _share(line.right, figures.problems),
                f"{line.expected:.1%}" if line.expected is not None else "",
                "" if mix is None else f"{mix.right:.1%}",
                "" if mix is None else _points(gain(line, mix, figures.problems)),
            ]
        )
    cost_name = "drawn and read" if read else "drawn"
    yield from table(
        ["budget", cost_name, "right (95%)", "expected", "fixed front there", "points over it (95%)"], rows
    )


def _points(found: Gain) -> str:
    ends = f"{100 * found.interval.low:+.1f} to {100 * found.interval.high:+.1f}"
    p_value = "" if found.p_value is None else f", p {'< 0.001' if found.p_value < 0.001 else f'= {found.p_value:.3f}'}"
    return f"{100 * found.difference:+.1f} ({ends}{p_value})"


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
    fronts = [mix.right for drawn in ends if (mix := figures.front(drawn)) is not None]
    axes.plot(ends, fronts, color="#56B4E9", label="their front")
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
