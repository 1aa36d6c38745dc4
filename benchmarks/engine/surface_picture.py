"""The picture of the batch surface: problems a second by sequences and tokens of a step, measured and estimated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

Cell = tuple[float, int, int]


def draw(
    models: Sequence[str],
    measured: Mapping[str, Mapping[Cell, float]],
    estimated: Mapping[str, Mapping[Cell, float]],
    optima: tuple[Cell, Cell],
    path: Path,
) -> None:
    """A row for each of `optima`'s tables, measured and estimated; a column for each model, at that optimum's split."""
    matplotlib.rcParams.update({"svg.hashsalt": "qpdsl", "font.size": 9})
    size = (4.2 * len(models), 6.4)
    picture, axes = plt.subplots(2, len(models), figsize=size, layout="constrained", squeeze=False)
    for row, (name, tables, cell) in enumerate(
        zip(("measured", "estimated"), (measured, estimated), optima, strict=True)
    ):
        for column, model in enumerate(models):
            _table(axes[row][column], tables[model], cell, f"{model}, {name}")
    picture.suptitle("Problems a second of each model alone; framed: where the slowest is fastest")
    picture.savefig(path, format="svg", metadata={"Date": None}, facecolor="white")
    plt.close(picture)


def _table(axes: Axes, table: Mapping[Cell, float], best: Cell, title: str) -> None:
    part = best[0]
    sequences = sorted({cell[1] for cell in table if cell[0] == part})
    budgets = sorted({cell[2] for cell in table if cell[0] == part})
    rates = [[table[part, most, budget] for budget in budgets] for most in sequences]
    axes.imshow(rates, cmap="Blues", vmin=0.0, aspect="auto")
    axes.set_xticks(range(len(budgets)), [f"{budget:,}" for budget in budgets])
    axes.set_yticks(range(len(sequences)), [str(most) for most in sequences])
    axes.set(title=title, xlabel="tokens of a step", ylabel="sequences")
    top = max(map(max, rates)) or 1.0
    for row, line in enumerate(rates):
        for column, rate in enumerate(line):
            axes.text(
                column, row, f"{rate:.3g}", ha="center", va="center", color="white" if rate > 0.6 * top else "black"
            )
    place = budgets.index(best[2]) - 0.5, sequences.index(best[1]) - 0.5
    axes.add_patch(plt.Rectangle(place, 1, 1, fill=False, edgecolor="#D55E00", linewidth=2))
