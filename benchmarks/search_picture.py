"""The picture of `search_accuracy.py`: right answers against what each strategy spent for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
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
    "rebase": ("#8C6D00", "P"),
}
_AXES = {
    "generator": "tokens through the generator",
    "spent": "tokens through generator and verifier",
    "seconds": "seconds",
}


class Spending(Protocol):
    """A strategy at one budget, with what it spent a problem."""

    @property
    def strategy(self) -> str: ...
    @property
    def right(self) -> float: ...


def draw(lines: Sequence[Spending], problems: int, path: Path) -> None:
    """Write the picture as SVG, the same bytes for the same figures."""
    matplotlib.rcParams.update({"svg.hashsalt": "qpdsl", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3})
    picture, panels = plt.subplots(1, len(_AXES), figsize=(13, 4.8), layout="constrained", sharey=True)
    for axes, (figure, label) in zip(panels, _AXES.items(), strict=True):
        for name, (colour, marker) in _STYLES.items():
            some = [line for line in lines if line.strategy == name]
            axes.plot(
                [getattr(line, figure) for line in some],
                [line.right for line in some],
                color=colour,
                marker=marker,
                label=name.replace("_", " "),
            )
        axes.set_xscale("log")
        axes.set_xlabel(f"{label}, a problem")
    panels[0].yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    panels[0].set_ylabel(f"right, of {problems} problems")
    picture.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(_STYLES))
    picture.savefig(path, format="svg", metadata={"Date": None}, facecolor="white")
    plt.close(picture)
