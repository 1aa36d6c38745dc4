"""Table, goals and plot of `routing.recorded`, from its record."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from benchmarks.common.results import Goal, goal_table
from qpdsl.executor.requests.routing import ARMS

Record = dict[str, Any]
ROUTER = "lin_ucb"
# The oracle's loss over the router's, at the least: a loss of 1.05 over the oracle's.
_MOST = 1.05


def goals_of(record: Record) -> list[Goal]:
    return [
        Goal(f"{model}: the oracle's time over the router's (1 / {_MOST})", round(1 / _MOST, 4), 1 / way["over_oracle"])
        for model, found in record["models"].items()
        for way in found["ways"]
        if way["name"] == ROUTER
    ]


def page(record: Record) -> str:
    """All tables, as markdown."""
    machine = record["machine"]
    lines = ["# The router on recorded decoding", "", goal_table(goals_of(record)), ""]
    lines += ["![regret over the steps](routing_recorded.svg)", ""]
    for model, found in record["models"].items():
        lines += [f"## {model}", "", *_model(found), ""]
    lines += [
        "Records held to a schema and free text, groups of 1 to 16 samples; half way another schema and other groups. "
        f"At every step with a choice every arm ran {record['tries']} times and the least time counts; the oracle is "
        "the best arm of each step. Losses are the head's seconds, with what the way itself takes, over the oracle's. "
        f"Ways that draw are means over {record['seeds']} seeds. `static`: over the best fixed arm; `dynamic`: over "
        "the oracle; both in seconds, in all. V_T: how far the arms' seconds moved, tens of steps averaged.",
        "",
        f"Written by `python -m benchmarks.routing.recorded`, {record['threads']} thread(s), float32, by "
        f"{'the wall clock' if record['clock'] == 'wall' else 'processor time'}. Measured on: "
        f"{machine['processor']}, {machine['cores']} cores, Python {machine['python']}, torch {machine['torch']}.",
    ]
    return "\n".join(lines) + "\n"


def _model(found: Record) -> Iterator[str]:
    yield (
        f"{found['steps']:,} steps, the change after {found['changed']:,}. Oracle: "
        f"{found['oracle_milliseconds']:.3f} ms a step. A list of ids was measured to pay up to "
        f"{found['crossover']:.0%} of the head. V_T {found['ways'][0]['variation']:.2f} s."
    )
    yield ""
    arms = " | ".join(ARMS)
    yield f"| way | over oracle | largest | before | after | own µs | ms a step | {arms} | static, s | dynamic, s |"
    yield f"|---|{'---:|' * (6 + len(ARMS) + 2)}"
    for way in found["ways"]:
        shares = " | ".join(f"{share:.0%}" for share in way["shares"])
        yield (
            f"| {way['name']} | {way['over_oracle']:.3f} | {way['largest']:.3f} | {way['first']:.3f} "
            f"| {way['second']:.3f} | {way['micros']:.1f} | {way['milliseconds']:.3f} | {shares} "
            f"| {way['static']:.2f} | {way['dynamic']:.2f} |"
        )


def draw(record: Record, path: Path) -> None:
    """Writes the dynamic regret over the steps, a panel for each model, as SVG: the same bytes for the same figures."""
    matplotlib.rcParams.update({"svg.hashsalt": "qpdsl", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3})
    models = record["models"]
    picture, panels = plt.subplots(1, len(models), figsize=(6 * len(models), 4.2), layout="constrained", squeeze=False)
    for axes, (model, found) in zip(panels.flat, models.items(), strict=True):
        for name, curve in found["curves"].items():
            steps = [found["steps"] * index / len(curve) for index in range(len(curve))]
            axes.plot(steps, curve, label=name, linestyle="--" if name.startswith(("always", "rule")) else "-")
        axes.axvline(found["changed"], color="black", linewidth=0.8, linestyle=":")
        axes.set_yscale("symlog", linthresh=0.01)
        axes.set_xlabel("steps")
        axes.set_title(model)
    panels.flat[0].set_ylabel("seconds over the oracle, so far")
    panels.flat[-1].legend(fontsize=7)
    picture.savefig(path, format="svg", metadata={"Date": None}, facecolor="white")
    plt.close(picture)
