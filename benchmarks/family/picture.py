"""The picture of the built-in family: accuracy against tokens, by level, calibration, agreement."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from family.measure.agreement import Agreement
from family.measure.family_figures import Figures
from family.measure.search_accuracy import COUNTS, MethodAccuracy

# Colours that stay apart for the colour-blind (Okabe and Ito), each with a marker of its own.
_STYLES = {
    "self-consistency": ("#E69F00", "o"),
    "best-of-N": ("#56B4E9", "s"),
    "weighted best-of-N": ("#0072B2", "D"),
    "pass@N": ("#999999", "^"),
}
_GREEDY, _BEAM = "#000000", "#D55E00"


def draw(figures: Figures, path: Path) -> None:
    """Write the picture as SVG, the same bytes for the same figures."""
    matplotlib.rcParams.update({"svg.hashsalt": "qpdsl", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3})
    picture, ((search, levels), (calibration, agreement)) = plt.subplots(2, 2, figsize=(11, 8), layout="constrained")
    _search(search, figures)
    _levels(levels, figures)
    _calibration(calibration, figures)
    _agreement(agreement, figures)
    picture.savefig(path, format="svg", metadata={"Date": None}, facecolor="white")
    plt.close(picture)


def _search(axes: Axes, figures: Figures) -> None:
    for method, (colour, marker) in _STYLES.items():
        lines = [figures.accuracy(method, n) for n in COUNTS]
        axes.plot(
            [line.tokens for line in lines],
            [line.right for line in lines],
            color=colour,
            marker=marker,
            linestyle="--" if method == "pass@N" else "-",
            label=method,
        )
    greedy, beam = figures.accuracy("greedy", 1), figures.accuracy("beam", 16)
    axes.plot(greedy.tokens, greedy.right, color=_GREEDY, marker="x", markersize=9, linestyle="", label="greedy")
    axes.plot(beam.tokens, beam.right, color=_BEAM, marker="*", markersize=13, linestyle="", label="beam search 4×4")
    axes.set_xscale("log")
    axes.set(title="Right answers against tokens", xlabel="sampled tokens a problem", ylabel="right")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.legend()


def _levels(axes: Axes, figures: Figures) -> None:
    chosen: list[tuple[str, MethodAccuracy, str]] = [
        ("greedy", figures.accuracy("greedy", 1), _GREEDY),
        ("self-consistency 16", figures.accuracy("self-consistency", 16), _STYLES["self-consistency"][0]),
        ("weighted best-of-16", figures.accuracy("weighted", 16), _STYLES["weighted best-of-N"][0]),
        ("beam search 4×4", figures.accuracy("beam", 16), _BEAM),
    ]
    width = 0.8 / len(chosen)
    for index, (label, line, colour) in enumerate(chosen):
        places = [level + (index - (len(chosen) - 1) / 2) * width for level in line.by_level]
        axes.bar(places, list(line.by_level.values()), width * 0.92, color=colour, label=label)
    axes.set(title="By difficulty", xlabel="level", ylabel="right")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.legend()


def _calibration(axes: Axes, figures: Figures) -> None:
    bins = figures.judgement.bins
    axes.plot([0, 1], [0, 1], color="#999999", linestyle="--", label="calibrated")
    axes.plot([b.score for b in bins], [b.right for b in bins], color="#0072B2", marker="o", label="counting-prm")
    axes.set(title="The verifier's calibration", xlabel="mean score of a step", ylabel="share of steps that are right")
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.legend()


def _agreement(axes: Axes, figures: Figures) -> None:
    for predictor, label, colour, marker in (
        (figures.mini, "counting-mini, by confidence", "#009E73", "o"),
        (figures.middle, "middle layer, by margin", "#CC79A7", "s"),
    ):
        axes.plot(*_points(predictor), color=colour, marker=marker, label=label)
    axes.set(title="The same token as the generator", xlabel="sureness of the cheap predictor", ylabel="same token")
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.legend()


def _points(agreement: Agreement) -> tuple[list[float], list[float]]:
    return [(band.low + band.high) / 2 for band in agreement.bands], [band.agree for band in agreement.bands]
