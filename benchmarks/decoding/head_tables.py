"""Tables, goals and plot of `decoding.heads`, from its record."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from benchmarks.common.results import Goal, Ratio, goal_table

Record = dict[str, Any]
# Numbers of allowed ids that have a column.
_SHOWN = (1, 16, 256, 4096, 65_536)
_GOAL = (4096, 128_256, 256, 12.0)


def times(entry: Record) -> Ratio:
    """How many times faster sparse was."""
    return Ratio.of([dense / sparse for dense, sparse in zip(entry["dense"], entry["sparse"], strict=True)])


def goals_of(record: Record) -> list[Goal]:
    width, vocabulary, ids, least = _GOAL
    return [
        Goal(f"{ids} of {vocabulary:,} ids, {width} wide, 1 row: times dense", least, times(entry).median)
        for entry in record["kernels"]
        if (entry["width"], entry["vocabulary"], entry["ids"]) == (width, vocabulary, ids)
        and entry["rows"] == 1
        and entry["kind"] == "random"
    ]


def page(record: Record) -> str:
    """All tables, as markdown."""
    lines = ["# Dense and sparse heads", "", goal_table(goals_of(record)), "", "![times dense](heads.svg)", ""]
    lines += ["## The head alone", "", *_kernels(record), "", "## Whole decode steps", "", *_steps(record), ""]
    clock = "the wall clock" if record["clock"] == "wall" else "processor time"
    machine = record["machine"]
    lines += [
        f"Times are by {clock}, {record['threads']} thread(s), float32, temperature 1 (whole steps: greedy). Times "
        "dense: the median of the rounds. A panel holds neighbouring ids, and one with an allowed id is read whole. "
        "Crossover: the share of all panels up to which listing them was faster, by all counts of ids that were "
        "measured. Shares of the roofline are bytes of panels over time, against the "
        f"{record['bytes_a_second'] / 1e9:.1f} GB/s that a loop read from memory in the same run; a list that fits a "
        "cache can be above.",
        "",
        f"Written by `python -m benchmarks.decoding.heads`. Measured on: {machine['processor']}, {machine['cores']} "
        f"cores, Python {machine['python']}, torch {machine['torch']}.",
    ]
    return "\n".join(lines) + "\n"


def _grouped(record: Record) -> dict[tuple[int, int, int, str], list[Record]]:
    """Measurements of each width, vocabulary, batch and kind of ids, by their number; all ids belong to both kinds."""
    groups: dict[tuple[int, int, int, str], list[Record]] = {}
    for entry in record["kernels"]:
        groups.setdefault((entry["width"], entry["vocabulary"], entry["rows"], entry["kind"]), []).append(entry)
    return groups


def crossover(entries: list[Record]) -> float:
    """The largest share of all panels that was computed faster from a list."""
    faster = [entry["panels"] / entry["all_panels"] for entry in entries if times(entry).median >= 1]
    return max(faster, default=0.0)


def roofline(record: Record, entry: Record, side: str) -> float:
    panels = entry["panels"] if side == "sparse" else entry["all_panels"]
    return float(panels * entry["panel_bytes"] / statistics.median(entry[side]) / record["bytes_a_second"])


def _kernels(record: Record) -> Iterator[str]:
    columns = " | ".join(f"{count:,} ids" for count in _SHOWN)
    yield (
        f"| width | ids | rows | allowed | MB | dense, ms | times dense: {columns} | crossover, of panels "
        "| roofline: dense | sparse at 256 |"
    )
    yield f"|{'---:|' * 3}---|{'---:|' * (5 + len(_SHOWN))}"
    for (width, vocabulary, rows, kind), entries in _grouped(record).items():
        by_ids = {entry["ids"]: entry for entry in entries}
        first = entries[0]
        shown = " | ".join(f"{times(by_ids[ids]).median:.1f}" if ids in by_ids else "" for ids in _SHOWN)
        dense = statistics.median(second for entry in entries for second in entry["dense"])
        sparse = f"{roofline(record, by_ids[256], 'sparse'):.0%}" if 256 in by_ids else ""
        yield (
            f"| {width} | {vocabulary:,} | {rows} | {kind} | {first['all_panels'] * first['panel_bytes'] / 1e6:,.0f} "
            f"| {dense * 1e3:.1f} | {shown} | {crossover(entries):.0%} | {roofline(record, first, 'dense'):.0%} "
            f"| {sparse} |"
        )


def _steps(record: Record) -> Iterator[str]:
    yield "| shape | rows | ids allowed | dense, ms a step | sparse, ms a step | times dense |"
    yield "|---|---:|---:|---:|---:|---:|"
    for entry in record["steps"]:
        dense, sparse = (1e3 * statistics.median(entry[side]) for side in ("dense", "sparse"))
        yield f"| {entry['model']} | {entry['rows']} | {entry['ids']:,} | {dense:.1f} | {sparse:.1f} | {times(entry)} |"


def draw(record: Record, path: Path) -> None:
    """Writes times dense over the number of allowed ids, a panel for each batch, as SVG: the same bytes for the same
    figures."""
    matplotlib.rcParams.update({"svg.hashsalt": "qpdsl", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3})
    groups = _grouped(record)
    batches = list(dict.fromkeys(rows for _, _, rows, _ in groups))
    picture, panels = plt.subplots(
        1, len(batches), figsize=(6 * len(batches), 4.2), layout="constrained", squeeze=False, sharey=True
    )
    styles = dict(zip(dict.fromkeys(vocabulary for _, vocabulary, _, _ in groups), ("-", "--", ":"), strict=False))
    colors = {width: f"C{number}" for number, width in enumerate(dict.fromkeys(width for width, *_ in groups))}
    for axes, batch in zip(panels.flat, batches, strict=True):
        for (width, vocabulary, rows, kind), entries in groups.items():
            if rows == batch and kind == "random":
                axes.plot(
                    [entry["ids"] for entry in entries],
                    [times(entry).median for entry in entries],
                    color=colors[width],
                    linestyle=styles[vocabulary],
                    label=f"{width} wide, {vocabulary:,} ids",
                )
        axes.axhline(1.0, color="black", linewidth=0.8)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("allowed ids, drawn evenly")
        axes.set_title(f"{batch} row(s)")
    panels.flat[0].set_ylabel("times as fast as dense")
    panels.flat[-1].legend(fontsize=7)
    picture.savefig(path, format="svg", metadata={"Date": None}, facecolor="white")
    plt.close(picture)
