"""Table, goals and plot of `decoding.filter_sweep`, from its record."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.ticker import PercentFormatter

from benchmarks.common.results import Goal, Ratio, goal_table

Record = dict[str, Any]
_ALONE = ("small", "middle", "large")
# Colours that stay apart for the colour-blind (Okabe and Ito), each with a marker of its own.
_STYLES = {
    "probability": ("#0072B2", "o"),
    "margin": ("#E69F00", "s"),
    "entropy": ("#009E73", "^"),
    "share": ("#CC79A7", "D"),
}
# What the filter is to decide by itself, in draws, and what it may lose, in right answers.
_DECIDED, _LOST = 0.5, 0.01


def kind(side: str) -> str | None:
    """The confidence that a side filters by, or "share"; None where one model answers alone."""
    return None if side in _ALONE else side.removeprefix("filter, ").split()[0]


def unseen(entry: Record) -> tuple[float, float]:
    """The shares of requests and of draws that the large model never saw."""
    filtered = entry["filter"]
    if filtered is None:
        return (0.0, 0.0) if entry["side"] == "large" else (1.0, 1.0)
    return filtered["alone"] / filtered["samples"], filtered["decided"] / filtered["draws"]


def times(record: Record, entry: Record) -> Ratio:
    """How many times faster than the large model alone, by the process's own time."""
    large = _at(record, "large", entry["in_flight"])
    pairs = zip(large["cpu_seconds"], entry["cpu_seconds"], strict=False)
    return Ratio.of([alone / own for alone, own in pairs])


def goals_of(record: Record) -> list[Goal]:
    """Of the thresholds that lose at most a point and decide half of the draws, the fastest one's figures."""
    first = _first(record)
    whole = [entry for entry in record["sides"] if entry["in_flight"] == first]
    if not any(entry["side"] == "large" for entry in whole):
        return []
    right = _at(record, "large", first)["right"]
    fine = [
        entry
        for entry in whole
        if kind(entry["side"]) is not None and entry["right"] >= right - _LOST and unseen(entry)[1] >= _DECIDED
    ]
    if not fine:
        return [Goal("thresholds that decide half of the draws and lose at most a point", 1, 0)]
    best = max(fine, key=lambda entry: times(record, entry).median)
    goals = [
        Goal(f"{best['side']}: draws decided by the small model", _DECIDED, unseen(best)[1]),
        Goal(f"{best['side']}: points of right answers gained", -100 * _LOST, 100 * (best["right"] - right)),
    ]
    for in_flight in dict.fromkeys(entry["in_flight"] for entry in record["sides"]):
        own = [entry for entry in record["sides"] if (entry["side"], entry["in_flight"]) == (best["side"], in_flight)]
        what = f"{best['side']}, {in_flight} in flight: times the large model alone"
        goals += [Goal(what, 1, times(record, entry).median) for entry in own]
    return goals


def page(record: Record, name: str, goals: list[Goal]) -> str:
    """All of it, as markdown."""
    models = record["models"]
    lines = [f"# Filter decoding ({models['slm']} before {models['llm']})", "", goal_table(goals), ""]
    lines += [f"![right answers against what the large model never saw]({name}.svg)", ""]
    for in_flight in dict.fromkeys(entry["in_flight"] for entry in record["sides"]):
        entries = [entry for entry in record["sides"] if entry["in_flight"] == in_flight]
        lines += [f"## {in_flight} in flight, {entries[0]['problems']} problems", "", *_table(record, entries), ""]
    machine = record["machine"]
    lines += [
        f"Temperature {record['temperature']:g}, float32, one thread, the process's own time. Requests and draws "
        "unseen: those that the large model had no part in. Same as large: problems with the large model's answer. "
        "Large tokens: those that went through it, prompts and catching up included, over those when it is alone. "
        "Batch: rows that the request cache sent it at once. Times large: how many times as fast as the large model "
        "alone, the median of the rounds. The first sides are one model alone each.",
        "",
        f"Written by `python -m benchmarks.decoding.filter_sweep`. Measured on: {machine['processor']}, "
        f"{machine['cores']} cores, Python {machine['python']}, torch {machine['torch']}.",
    ]
    return "\n".join(lines) + "\n"


def _table(record: Record, entries: list[Record]) -> Iterator[str]:
    yield "| side | right | same as large | requests unseen | draws unseen | large tokens | batch | times large |"
    yield f"|---|{'---:|' * 7}"
    large = next((entry for entry in entries if entry["side"] == "large"), None)
    if large is None:
        return
    name = _large_name(large)
    for entry in entries:
        requests, draws = unseen(entry)
        filtered = entry["filter"] or {}
        same = sum(a == b for a, b in zip(entry["answers"], large["answers"], strict=True)) / len(large["answers"])
        batch = f"{filtered['large_draws'] / filtered['batches']:.1f}" if filtered.get("batches") else ""
        share = entry["computed"].get(name, 0) / large["computed"][name]
        yield (
            f"| {entry['side']} | {entry['right']:.1%} | {same:.1%} | {requests:.1%} | {draws:.1%} | {share:.0%} "
            f"| {batch} | {times(record, entry)} |"
        )


def draw(record: Record, path: Path) -> None:
    """Writes right answers over the share of requests, and of draws, that the large model never saw, as SVG: the same
    bytes for the same figures."""
    matplotlib.rcParams.update({"svg.hashsalt": "qpdsl", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3})
    picture, panels = plt.subplots(1, 3, figsize=(14, 4.2), layout="constrained")
    first = _first(record)
    entries = [entry for entry in record["sides"] if entry["in_flight"] == first]
    axis = {
        "requests that the large model never saw": lambda entry: unseen(entry)[0],
        "draws that the large model never saw": lambda entry: unseen(entry)[1],
        "times as fast as the large model alone": lambda entry: times(record, entry).median,
    }
    for axes, (label, value) in zip(panels, axis.items(), strict=True):
        for name, (color, marker) in _STYLES.items():
            own = sorted((value(entry), entry["right"]) for entry in entries if kind(entry["side"]) == name)
            if own:
                axes.plot(*zip(*own, strict=True), color=color, marker=marker, label=f"filter by {name}")
        for name, marker in zip(_ALONE, ("v", "P", "*"), strict=True):
            for entry in entries:
                if entry["side"] == name:
                    axes.plot([value(entry)], [entry["right"]], "k" + marker, markersize=8, label=f"{name} alone")
        axes.set_xlabel(label)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        if "times" not in label:
            axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    panels[0].set_ylabel("right answers")
    panels[-1].legend(fontsize=7)
    picture.savefig(path, format="svg", metadata={"Date": None}, facecolor="white")
    plt.close(picture)


def _first(record: Record) -> int:
    """The number in flight with which all problems were run."""
    return int(record["sides"][0]["in_flight"]) if record["sides"] else 0


def _at(record: Record, side: str, in_flight: int) -> Record:
    return next(entry for entry in record["sides"] if (entry["side"], entry["in_flight"]) == (side, in_flight))


def _large_name(large: Record) -> str:
    """The model that worked where the large one answers alone."""
    return str(max(large["computed"], key=large["computed"].__getitem__))
