"""Tables, goals and plot of `decoding.amortized`, from its record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from benchmarks.common.results import Goal, Ratio, goal_table

Record = dict[str, Any]
_CLOCKS = {"wall": 0, "cpu": 1}
# What is to be reached on a model of so many layers: so much faster with so many draws the same.
_LAYERS, _FASTER, _AGREEMENT = 18, 1.3, 0.99


@dataclass(frozen=True)
class Setting:
    """One way to leave a model early, in one case."""

    case: Record
    side: Record
    clock: str

    @property
    def faster(self) -> Ratio:
        """How many times as fast as the full model."""
        place = _CLOCKS[self.clock]
        pairs = zip(self.case["full"], self.side["rounds"], strict=True)
        return Ratio.of([full["seconds"][place] / own["seconds"][place] for full, own in pairs])

    @property
    def refined(self) -> float:
        """The share of the draws that went on, as it ran."""
        last = self.side["rounds"][-1]
        return float(last["refined"] / max(1, last["exits"] + last["refined"]))

    @property
    def of_exits(self) -> float | None:
        """Of the draws that leave along the full model's tokens, the share that draw its token."""
        return self.side["left_same"] / self.side["left"] if self.side["left"] else None

    @property
    def agreement(self) -> float:
        """The same of all draws: those that go on draw the full model's token, unless they are reranked."""
        return float(self.side["same"] / max(1, self.side["draws"]))


def settings_of(record: Record, clock: str) -> list[Setting]:
    return [Setting(case, side, clock) for case in record["cases"] for side in case["sides"].values()]


def goals_of(record: Record, clock: str) -> list[Goal]:
    """For each real model and task the fastest setting that agrees often enough."""
    best: dict[tuple[str, str, int, int], Setting | None] = {}
    for setting in settings_of(record, clock):
        case = setting.case
        if max(case["layers"]) < _LAYERS // 2:
            continue
        key = case["model"], case["task"], case["tokens"], case["rows"]
        held = best.setdefault(key, None)
        if setting.agreement >= _AGREEMENT and (held is None or setting.faster.median > held.faster.median):
            best[key] = setting
    return [
        Goal(
            f"{model}, {task}, {tokens} tokens, {rows} row(s): times full at {_AGREEMENT:.0%} agreement",
            _FASTER,
            0.0 if held is None else held.faster.median,
        )
        for (model, task, tokens, rows), held in best.items()
    ]


def page(record: Record, clock: str) -> str:
    """All tables, as markdown."""
    lines = ["# Early exits", "", goal_table(goals_of(record, clock)), "", "![times full](amortized.svg)", ""]
    for case in record["cases"]:
        rows = f"{case['rows']} row{'s' if case['rows'] > 1 else ''}"
        lines += [f"## {case['model']}, {case['task']}: {case['tokens']} tokens, {rows}", "", *_table(case, clock), ""]
    clock_name = "the wall clock" if clock == "wall" else "processor time"
    lines += [
        f"Times are by {clock_name}, prompts counted, greedy, float32. Times full: the median of the rounds, lowest "
        "and highest. Exits leave after the layer where the margin is reached: plain, by the model's norm and head; "
        "head, by an exit head fitted to other texts; reranked, those that go on choose among its 32 best ids. "
        "Leave, and same: along the full model's own tokens, draw by draw; of exits, of those that leave, of draws, of "
        "all. Refined: as it ran. Late: tokens whose last layers were computed afterwards. Texts: of those that came "
        "out, how many are the full model's from end to end.",
        "",
        _foot(record),
    ]
    return "\n".join(lines) + "\n"


def _foot(record: Record) -> str:
    machine = record["machine"]
    return (
        f"Written by `python -m benchmarks.decoding.amortized`. Measured on: {machine['processor']}, "
        f"{machine['cores']} cores, Python {machine['python']}, torch {machine['torch']}."
    )


def _table(case: Record, clock: str) -> Iterator[str]:
    yield "| layer | exit | margin | times full | leave | same, of exits | of draws | refined | late | texts |"
    yield "|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    for side in case["sides"].values():
        setting = Setting(case, side, clock)
        of_exits = setting.of_exits
        cells = [
            str(side["layer"]),
            side["kind"],
            f"{side['margin']:g}",
            str(setting.faster),
            f"{side['left'] / max(1, side['draws']):.0%}",
            "" if of_exits is None else f"{of_exits:.1%}",
            f"{setting.agreement:.1%}",
            f"{setting.refined:.0%}",
            f"{side['rounds'][-1]['late']:,}",
            f"{side['same_texts']} of {case['rows']}",
        ]
        yield f"| {' | '.join(cells)} |"


def draw(record: Record, clock: str, path: Path) -> None:
    """Writes times full by agreement, a panel for each case, as SVG: the same bytes for the same figures."""
    cases = record["cases"]
    if not cases:
        return
    matplotlib.rcParams.update({"svg.hashsalt": "qpdsl", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3})
    columns = min(3, len(cases))
    lines = -(-len(cases) // columns)
    picture, panels = plt.subplots(
        lines, columns, figsize=(4.2 * columns, 3.4 * lines), layout="constrained", squeeze=False
    )
    for axes in panels.flat[len(cases) :]:
        axes.set_visible(False)
    for axes, case in zip(panels.flat, cases, strict=False):
        own = [Setting(case, side, clock) for side in case["sides"].values()]
        for layer in case["layers"]:
            for kind in dict.fromkeys(one.side["kind"] for one in own):
                shown = [one for one in own if (one.side["layer"], one.side["kind"]) == (layer, kind)]
                axes.plot(
                    [one.agreement for one in shown],
                    [one.faster.median for one in shown],
                    "x--" if kind == "plain" else "o-",
                    label=f"layer {layer}, {kind}",
                )
        axes.axhline(1.0, color="black", linewidth=0.8)
        axes.axvline(_AGREEMENT, color="black", linewidth=0.8, linestyle=":")
        axes.set_xlabel("draws that are the full model's")
        axes.set_ylabel("times as fast as full")
        axes.set_title(f"{case['model']}, {case['task']}, {case['tokens']} tokens")
        axes.legend(fontsize=7)
    picture.savefig(path, format="svg", metadata={"Date": None}, facecolor="white")
    plt.close(picture)
