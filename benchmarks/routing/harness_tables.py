"""Tables and plot of `routing.harness`, from its record."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import numpy as np

from benchmarks.routing import synthetic

Record = dict[str, Any]
# What LLM-QP prints, and the goal for the router's loss over the oracle, with what it takes.
PUBLISHED = {"sparse": 1.060, "dense": 6.660}
PUBLISHED_ROUTER = 1.046
GOAL = 1.02
_NEAR = 0.02


def page(record: Record) -> str:
    """All tables, as markdown."""
    machine = record["machine"]
    lines = [
        "# The router on LLM-QP's synthetic harness",
        "",
        "![the claims](routing_harness.svg)",
        "",
        *_claims(record),
        "",
        "## Claim 1: sparse and dense over the number of allowed ids",
        "",
        *_first(record["claim_1"]),
        "",
        "## Claim 2: amortized against full",
        "",
        *_second(record["claim_2"]),
        "",
        "## Claim 3: routers",
        "",
        *_third(record),
        "",
        "## Drift",
        "",
        *_drift(record),
        "",
        f"Written by `python -m benchmarks.routing.harness`. Choices do not depend on the machine, what policies take "
        f"does. Measured on: {machine['processor']}, {machine['cores']} cores, Python {machine['python']}.",
    ]
    return "\n".join(lines) + "\n"


def router(record: Record) -> Record:
    """The row of the router that the goal is for."""
    first: Record = record["routers"][0]
    return first


def _claims(record: Record) -> Iterator[str]:
    one, two = record["claim_1"], record["claim_2"]
    rows = [
        ("1: dense step", "0.628 ms", f"{one['dense'][3]:.3f} ms", _near(one["dense"][3], 0.628)),
        ("1: sparse step at K = 256", "0.051 ms", f"{one['sparse'][3]:.3f} ms", _near(one["sparse"][3], 0.051)),
        ("1: times dense at K = 256", "12", f"{one['speedup_256']:.1f}", abs(one["speedup_256"] - 12) < 0.5),
        ("1: crossover", "K = 128k", f"K = {one['crossover']:,}", True),
        ("2: refined", "35%", f"{two['refined'][0]:.1%}", _near(two["refined"][0], 0.35)),
        ("2: times full", "2.4", f"{two['speedup']:.2f}", abs(two["speedup"] - 2.4) < 0.05),
        ("2: saved over 256 steps", "94.5 ms", f"{two['saved']:.1f} ms", _near(two["saved"], 94.5)),
    ]
    for name, wanted in PUBLISHED.items():
        found = record["fixed"][name]
        rows.append((f"3: always {name}, over the oracle", f"{wanted:.3f}", f"{found:.3f}", _near(found, wanted)))
    yield "| claim | published | here | |"
    yield "|---|---:|---:|---|"
    for name, published, here, good in rows:
        yield f"| {name} | {published} | {here} | {'agrees' if good else '**differs**'} |"
    reached = router(record)["charged"]
    met = "met" if reached <= GOAL else "**missed**"
    yield f"| 3: the router, with what it takes | {PUBLISHED_ROUTER}; goal ≤ {GOAL} | {reached:.3f} | {met} |"


def _near(reached: float, wanted: float) -> bool:
    return abs(reached / wanted - 1) <= _NEAR


def _first(found: Record) -> Iterator[str]:
    yield "| K | dense, ms | sparse, ms | times dense |"
    yield "|---:|---:|---:|---:|"
    for allowed, dense, sparse in zip(found["allowed"], found["dense"], found["sparse"], strict=True):
        yield f"| {allowed:,.0f} | {dense:.3f} | {sparse:.3f} | {dense / sparse:.1f} |"
    yield ""
    yield (
        "The work at K = 256 is a 500th; that sparse is 12 times as fast and no more is the 0.050 ms that any step "
        "takes. What qpdsl's own heads take was [measured](heads.md)."
    )


def _second(found: Record) -> Iterator[str]:
    rate, spread = found["refined"]
    took, deviation = found["milliseconds"]
    yield (
        f"At τ = {synthetic.THRESHOLD} {rate:.1%} ± {spread:.1%} of {found['steps']} steps are refined; a step takes "
        f"{took:.3f} ± {deviation:.3f} ms (± between runs)."
    )
    yield ""
    yield "| τ | refined | ms a step | times full |"
    yield "|---:|---:|---:|---:|"
    rows = zip(found["thresholds"], found["refined_by_threshold"], found["milliseconds_by_threshold"], strict=True)
    for threshold, refined, milliseconds in list(rows)[::2]:
        yield f"| {threshold:.1f} | {refined:.0%} | {milliseconds:.3f} | {synthetic.FULL_MS / milliseconds:.2f} |"
    yield ""
    yield "| exit at this share of a step | times full, 35% refined |"
    yield "|---:|---:|"
    for share, times in found["exits"].items():
        yield f"| {float(share):.1%} | {times:.2f} |"
    yield ""
    yield "| K about | mean margin | by the formula | refined |"
    yield "|---:|---:|---:|---:|"
    columns = ("allowed", "margins", "margins_expected", "refined_by_allowed")
    for allowed, margin, formula, refined in zip(*(found[name] for name in columns), strict=True):
        yield f"| {allowed:,.0f} | {margin:.2f} | {formula:.2f} | {refined:.0%} |"


def _row(each: Record) -> str:
    free = f"{each['ratio']:.4f} ± {each['deviation']:.4f} | {each['largest']:.4f}"
    cost = f"{each['micros']:.2f} | {each['asked']:.0f} | {each['charged']:.3f} | {each['charged_largest']:.3f}"
    return f"| {each['name']} | {free} | {cost} | {_shares(each)} |"


def _shares(each: Record) -> str:
    return " / ".join(f"{share:.1%}" for share in each["shares"])


def _third(record: Record) -> Iterator[str]:
    yield (
        f"{record['steps']:,} steps, {record['seeds']} seeds. The oracle's mean loss is {record['oracle']:.4f} "
        "(λ = 0.5, milliseconds). Loss: over the oracle's, the mean ± deviation over the seeds, and the largest; "
        "charged: with what the policy takes. Asked: steps that the policy was asked about, others were looked up. "
        "Taken: dense / sparse / amortized. Losses are expected ones, also where a policy was told drawn ones. A prior "
        "is what a planner knows before the first step: one measured dense step; sparse as K/|V| of it; amortized by "
        "the place of its exit, and refined half of the time unless the row says otherwise."
    )
    yield ""
    yield "| policy | loss | largest | µs a step | asked | charged | largest | taken |"
    yield "|---|---:|---:|---:|---:|---:|---:|---|"
    for name, ratio in record["fixed"].items():
        yield f"| always {name} | {ratio:.3f} | | 0 | 0 | {ratio:.3f} | | |"
    yield f"| LLM-QP's LinUCB, as published | {PUBLISHED_ROUTER} | | | | | | 1% / 92% / 8% |"
    for each in record["routers"]:
        yield _row(each)


def _drift(record: Record) -> Iterator[str]:
    still, drifting = record["variations"]["still"], record["variations"]["drifting"]
    yield (
        f"Half way dense and sparse exchange what they cost. V_T is {drifting:.1f}, without the exchange {still:.1f}: "
        "nearly all of it is the context, which a policy sees. Regrets are sums of losses over the steps, in the mean "
        "of the seeds; static: against the best arm to stay with. A table asks every 64th step once it is sure, and at "
        "every step again after two that cost something else than expected."
    )
    yield ""
    yield "| policy | loss | dynamic regret | static regret | µs a step | taken |"
    yield "|---|---:|---:|---:|---:|---|"
    for each in record["drift"]:
        yield (
            f"| {each['name']} | {each['ratio']:.3f} ± {each['deviation']:.3f} | {each['dynamic']:.2f} "
            f"| {each['static']:.2f} | {each['micros']:.1f} | {_shares(each)} |"
        )


def draw(record: Record, path: Path) -> None:
    """Writes six panels as SVG: the same bytes for the same figures."""
    matplotlib.rcParams.update({"svg.hashsalt": "qpdsl", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3})
    picture, panels = plt.subplots(2, 3, figsize=(15, 8), layout="constrained")
    one, two = record["claim_1"], record["claim_2"]
    ids = np.geomspace(10, synthetic.VOCABULARY, 200)
    dense, sparse = synthetic.latencies(ids)[:, :2].T
    first, second, third, fourth, fifth, sixth = panels.flat
    first.plot(ids, dense, label="dense")
    first.plot(ids, sparse, label="sparse")
    first.axvline(one["crossover"], color="black", linewidth=0.8, linestyle=":")
    _name(first, "claim 1: a step by the ids allowed", "K, crossover at K = |V|", "ms", log=True)
    count = np.arange(1, two["steps"] + 1)
    second.plot(count, count * synthetic.FULL_MS, label="full")
    second.plot(count, two["cumulative"], label=f"amortized, τ = {synthetic.THRESHOLD}")
    _name(second, "claim 2: decode length", "step", "ms so far")
    third.plot(two["thresholds"], two["milliseconds_by_threshold"], label="ms a step")
    third.plot(two["thresholds"], two["refined_by_threshold"], linestyle="--", label="share refined")
    third.axhline(synthetic.FULL_MS, color="black", linewidth=0.8, linestyle=":", label="full, ms")
    _name(third, "routing cost by the threshold", "τ", "ms; share")
    fourth.plot(two["allowed"], two["margins"], "o", label="mean margin")
    fourth.plot(two["allowed"], two["margins_expected"], color="C0", label="by the formula")
    fourth.plot(two["allowed"], two["refined_by_allowed"], "s--", color="C1", label="share refined")
    _name(fourth, "margin by the branching factor", "K", "margin; share", log=True)
    for name, curve in record["curves"].items():
        fifth.plot(np.arange(len(curve)) * 10, curve, label=name)
    _name(fifth, "claim 3: regret against the oracle", "step", "sum of losses over the oracle's")
    for name, curve in record["drift_curves"].items():
        sixth.plot(np.arange(len(curve)) * 10, curve, label=name)
    _name(sixth, "drift half way: dynamic regret", "step", "sum of losses over the oracle's")
    sixth.set_yscale("symlog", linthresh=1)
    picture.savefig(path, format="svg", metadata={"Date": None}, facecolor="white")
    plt.close(picture)


def _name(axes: Any, title: str, across: str, up: str, log: bool = False) -> None:
    if log:
        axes.set_xscale("log")
    axes.set_title(title)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.legend(fontsize=7)
