"""The picture of `search.py`: right answers against sampled tokens, and what each rule is worth."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

# Colours that stay apart for the colour-blind (Okabe and Ito), each with a marker of its own.
_STYLES = {
    "greedy": ("#000000", "x"),
    "self_consistency": ("#E69F00", "o"),
    "best_of_n": ("#56B4E9", "s"),
    "weighted_best_of_n": ("#0072B2", "D"),
    "beam_search": ("#D55E00", "*"),
    "dvts": ("#009E73", "^"),
    "lookahead": ("#CC79A7", "v"),
    "rebase": ("#F0E442", "P"),
}


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Write the picture as SVG, the same bytes for the same figures."""
    matplotlib.rcParams.update({"svg.hashsalt": "qpdsl", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3})
    picture, (tokens, rules) = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    _tokens(tokens, found["accuracy"])
    if "rules" in found:
        _rules(rules, found["rules"])
    else:
        rules.set_axis_off()
    picture.savefig(path, format="svg", metadata={"Date": None}, facecolor="white")
    plt.close(picture)


def _tokens(axes: Axes, found: Mapping[str, Any]) -> None:
    for name, (colour, marker) in _STYLES.items():
        lines = [line for line in found["lines"] if line["strategy"] == name]
        if lines:
            axes.plot(
                [line["tokens a problem"] for line in lines],
                [line["right"] for line in lines],
                color=colour,
                marker=marker,
                linestyle="-" if len(lines) > 1 else "",
                label=name.replace("_", " "),
            )
    axes.set_xscale("log")
    title = f"Right answers against tokens, {found['problems']} problems"
    axes.set(title=title, xlabel="sampled tokens a problem", ylabel="right")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.legend()


def _rules(axes: Axes, found: Mapping[str, Any]) -> None:
    base = found["all rules"]["cpu_seconds"]
    named = [(name, one["cpu_seconds"] / base) for name, one in found.items() if isinstance(one, dict)]
    named = [(name, ratio) for name, ratio in named if name != "all rules"]
    named.sort(key=lambda pair: pair[1])
    axes.barh([name.replace("_", " ") for name, _ in named], [ratio for _, ratio in named], color="#0072B2")
    axes.axvline(1.0, color="#999999", linestyle="--")
    axes.set(title="Beam search with one rule off", xlabel="process time, times that of all rules")
