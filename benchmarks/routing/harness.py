"""LLM-QP's three static claims on its synthetic harness, and what our policies come to on it.

    python -m benchmarks.routing.harness [--seeds 20] [--quick] [--output FOLDER]

The costs are a model (`synthetic.py`), the router is the one that serves: a table before a policy that follows drift
(`executor/routing`). Choices are the same in every run; what a policy itself takes is measured, as the least of three
runs of each seed, in processor time of this thread, with the making of its contexts and the learning. It is charged to
the policy's loss, in a harness whose oracle takes 94 millionths of a second a step.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.folders import RESULTS
from benchmarks.common.machine import describe
from benchmarks.common.results import write
from benchmarks.routing import synthetic
from benchmarks.routing.harness_tables import draw, page
from benchmarks.routing.regret import Regret, cumulative, regret, variation
from benchmarks.routing.synthetic import AMORTIZED, DENSE, SPARSE, VOCABULARY, WEIGHT, Steps
from qpdsl.executor.routing.drift import drifting
from qpdsl.executor.routing.linear import LinUCB, Thompson
from qpdsl.executor.routing.policy import Policy
from qpdsl.executor.routing.route_table import RouteTable
from qpdsl.executor.routing.thresholds import Exponential

FILE = "routing_harness"
STEPS = 1200
# A context: 1 and K/|V|, in which a sparse head's cost is linear (LLM-QP, section 2), of a length of at most 1.
FEATURES = ("one", "share")
_UNIT = len(FEATURES) ** -0.5
# Of the router: its uncertainty, what its prior counts, and without a prior.
BETA, ALPHA = 0.03, 1.0
COLD_BETA, COLD_ALPHA = 0.01, 0.01
# How often amortized refines, before anything is known.
GUESS = 0.5
_TIMED = 3
# Where the seeds begin of runs that a warm start has learned from.
_EARLIER = 1_000_003

# A policy for a seed.
Maker = Callable[[int], Policy]


@dataclass(frozen=True)
class Outcome:
    """Of one way over the seeds. Ratios are to the oracle's loss: means, deviations, and the largest.

    `charged`: with what the policy takes, `micros` millionths of a second a step.
    """

    name: str
    ratio: float
    deviation: float
    largest: float
    charged: float
    charged_largest: float
    micros: float
    shares: list[float]
    asked: float
    dynamic: float
    static: float


def routed(policy: LinUCB | Thompson) -> RouteTable:
    """A policy as `--router` runs it."""
    return RouteTable(drifting(policy))


def walk(policy: Policy, steps: Steps) -> tuple[list[int], float]:
    """The arms that were taken, and the seconds of a step that the policy took."""
    paid = steps.paid.tolist()
    taken = []
    start = time.thread_time()
    for number, losses in zip(steps.allowed.tolist(), paid, strict=True):
        context = (_UNIT, _UNIT * number / VOCABULARY)
        arm = policy.choose(context)
        policy.learn(context, arm, losses[arm])
        taken.append(arm)
    return taken, (time.thread_time() - start) / len(taken)


def outcome(name: str, make: Maker, runs: list[Steps], timed: int) -> Outcome:
    """What `make(seed)` comes to over the seeds."""
    free: list[Regret] = []
    charged: list[Regret] = []
    asked: list[int] = []
    micros: list[float] = []
    for seed, steps in enumerate(runs):
        seconds = []
        for _ in range(timed):
            policy = make(seed)
            taken, second = walk(policy, steps)
            seconds.append(second)
        free.append(regret(steps.expected, taken))
        charged.append(regret(steps.expected, taken, charge=WEIGHT * min(seconds) * 1e3))
        asked.append(policy.asked if isinstance(policy, RouteTable) else len(taken))
        micros.append(min(seconds) * 1e6)
    return summary(name, free, charged, micros, asked)


def summary(name: str, free: list[Regret], charged: list[Regret], micros: list[float], asked: list[int]) -> Outcome:
    """An outcome of what each seed came to."""
    ratios, with_cost = ([each.over_oracle for each in reports] for reports in (free, charged))
    return Outcome(
        name,
        float(np.mean(ratios)),
        float(np.std(ratios)),
        max(ratios),
        float(np.mean(with_cost)),
        max(with_cost),
        float(np.mean(micros)),
        np.mean([each.shares for each in free], 0).tolist(),
        float(np.mean(asked)),
        float(np.mean([each.dynamic for each in free])),
        float(np.mean([each.static for each in free])),
    )


def linear(refine: float | None = None) -> LinUCB:
    """LinUCB with a planner's prior, which supposes that amortized refines so often, or with none."""
    if refine is None:
        return LinUCB(3, len(FEATURES), beta=COLD_BETA, alpha=COLD_ALPHA)
    return LinUCB(3, len(FEATURES), beta=BETA, alpha=ALPHA, prior=synthetic.prior(FEATURES, refine))


def warm(seed: int) -> RouteTable:
    """The router without a prior that has learned from another run, of which half counts."""
    first, second = routed(linear()), routed(linear())
    walk(first, synthetic.draw(STEPS, _EARLIER + seed))
    second.restore(first.state(), keep=0.5)
    return second


def claim_one() -> dict[str, Any]:
    allowed = np.array([1, 10, 100, 256, 1000, 10_000, 32_000, 64_000, 100_000, VOCABULARY], dtype=float)
    found = synthetic.latencies(allowed)
    return {
        "allowed": allowed.tolist(),
        "dense": found[:, DENSE].tolist(),
        "sparse": found[:, SPARSE].tolist(),
        "speedup_256": float(found[3, DENSE] / found[3, SPARSE]),
        "crossover": VOCABULARY,
    }


def claim_two(seeds: int) -> dict[str, Any]:
    count = 256
    runs = [synthetic.draw(count, seed, chance=True) for seed in range(seeds)]
    rates = [float((steps.margins < synthetic.THRESHOLD).mean()) for steps in runs]
    times = [float(synthetic.amortized(rate)) for rate in rates]
    thresholds = [index / 20 for index in range(21)]
    every = np.concatenate([steps.margins for steps in runs])
    by_threshold = [float((every < threshold).mean()) for threshold in thresholds]
    bins = np.linspace(0, 1, 13)
    place = synthetic.position(np.concatenate([steps.allowed for steps in runs]))
    within = [(place >= low) & (place <= high) for low, high in pairwise(bins)]
    middles = VOCABULARY ** ((bins[1:] + bins[:-1]) / 2)
    first = runs[0].margins < synthetic.THRESHOLD
    return {
        "steps": count,
        "refined": [float(np.mean(rates)), float(np.std(rates))],
        "milliseconds": [float(np.mean(times)), float(np.std(times))],
        "speedup": synthetic.FULL_MS / float(np.mean(times)),
        "saved": count * (synthetic.FULL_MS - float(np.mean(times))),
        "thresholds": thresholds,
        "refined_by_threshold": by_threshold,
        "milliseconds_by_threshold": [float(synthetic.amortized(rate)) for rate in by_threshold],
        "exits": {
            str(share): float(synthetic.FULL_MS / synthetic.amortized(0.35, share))
            for share in (0.096, 0.25, 0.5, 0.75)
        },
        "allowed": middles.tolist(),
        "margins": [float(every[each].mean()) for each in within],
        "margins_expected": synthetic.margin_mean(middles).tolist(),
        "refined_by_allowed": [float((every[each] < synthetic.THRESHOLD).mean()) for each in within],
        "cumulative": np.cumsum(synthetic.amortized(first.astype(float))).tolist(),
    }


def claim_three(runs: list[Steps], timed: int) -> tuple[dict[str, float], list[Outcome]]:
    """The fixed arms' ratios, and the routers'."""
    fixed = {
        name: float(np.mean([regret(steps.expected, [arm] * len(steps.allowed)).over_oracle for steps in runs]))
        for arm, name in enumerate(synthetic.ARMS)
    }
    noisy = [synthetic.draw(STEPS, seed, noise=0.05) for seed in range(len(runs))]
    chance = [synthetic.draw(STEPS, seed, noise=0.05, chance=True) for seed in range(len(runs))]

    def thompson(seed: int) -> Thompson:
        return Thompson(3, len(FEATURES), beta=COLD_BETA, alpha=COLD_ALPHA, seed=seed)

    rows: list[tuple[str, Maker, list[Steps]]] = [
        ("the router: table, LinUCB, prior", lambda seed: routed(linear(GUESS)), runs),
        ("the same, prior of the published 35%", lambda seed: routed(linear(0.35)), runs),
        ("the same, prior that never refines", lambda seed: routed(linear(0.0)), runs),
        ("the same, prior that always refines", lambda seed: routed(linear(1.0)), runs),
        ("the same, no prior", lambda seed: routed(linear()), runs),
        ("the same, no prior, warm", warm, runs),
        ("the same, prior; times ±5%", lambda seed: routed(linear(GUESS)), noisy),
        ("the same, prior; times ±5%, drawn margins", lambda seed: routed(linear(GUESS)), chance),
        ("table, Thompson, no prior", lambda seed: routed(thompson(seed)), runs),
        ("thresholds of K/V, sparse or amortized", lambda seed: Exponential(3, 2, reached=AMORTIZED, seed=seed), runs),
        ("without the table: LinUCB, prior", lambda seed: linear(GUESS), runs),
        ("without the table: LinUCB, no prior", lambda seed: linear(), runs),
    ]
    return fixed, [outcome(name, make, steps, timed) for name, make, steps in rows]


def drift(seeds: int) -> tuple[dict[str, float], list[Outcome], dict[str, list[float]]]:
    """Dense and sparse exchange what they cost half way: V_T with and without, the ways, and regrets over the steps."""
    runs = [synthetic.draw(STEPS, seed, swap=True) for seed in range(seeds)]
    still = [synthetic.draw(STEPS, seed) for seed in range(seeds)]
    variations = {
        "drifting": float(np.mean([variation(steps.expected) for steps in runs])),
        "still": float(np.mean([variation(steps.expected) for steps in still])),
    }
    ways: dict[str, Maker] = {
        "without table, window and test: LinUCB, no prior": lambda seed: linear(),
        "the router, prior": lambda seed: routed(linear(GUESS)),
        "the router, no prior": lambda seed: routed(linear()),
    }
    found, curves = [], {}
    for name, way in ways.items():
        found.append(outcome(name, way, runs, 1))
        curves[name] = _curve(way(0), runs[0])
    for arm, name in enumerate(synthetic.ARMS):
        reports = [regret(steps.expected, [arm] * STEPS) for steps in runs]
        found.append(summary(f"always {name}", reports, reports, [0.0], [0]))
    return variations, found, curves


def _curve(policy: Policy, steps: Steps) -> list[float]:
    """The dynamic regret of a policy, up to every tenth step."""
    return [round(value, 4) for value in cumulative(steps.expected, walk(policy, steps)[0])[::10].tolist()]


def curves_of(steps: Steps) -> Iterator[tuple[str, list[float]]]:
    yield "always sparse", [round(v, 4) for v in cumulative(steps.expected, [SPARSE] * STEPS)[::10].tolist()]
    yield "without the table: LinUCB, no prior", _curve(linear(), steps)
    yield "the router, no prior", _curve(routed(linear()), steps)
    yield "the router, prior", _curve(routed(linear(GUESS)), steps)


def measure(seeds: int, quick: bool) -> dict[str, Any]:
    """The whole record."""
    runs = [synthetic.draw(STEPS, seed) for seed in range(seeds)]
    fixed, routers = claim_three(runs, 1 if quick else _TIMED)
    variations, drifting, drift_curves = drift(seeds)
    return {
        "machine": describe(),
        "seeds": seeds,
        "steps": STEPS,
        "oracle": float(np.mean([steps.expected.min(1).mean() for steps in runs])),
        "claim_1": claim_one(),
        "claim_2": claim_two(seeds),
        "fixed": fixed,
        "routers": [asdict(each) for each in routers],
        "curves": dict(curves_of(runs[0])),
        "variations": variations,
        "drift": [asdict(each) for each in drifting],
        "drift_curves": drift_curves,
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seeds", type=int, default=20, help="runs of each way")
    options.add_argument("--quick", action="store_true", help="two seeds: does it work?")
    options.add_argument("--output", type=Path, default=RESULTS)
    arguments = options.parse_args()
    if arguments.seeds < 1:
        options.error("--seeds must be at least 1")
    record = measure(min(arguments.seeds, 2) if arguments.quick else arguments.seeds, arguments.quick)
    arguments.output.mkdir(parents=True, exist_ok=True)
    draw(record, arguments.output / f"{FILE}.svg")
    write(arguments.output, FILE, page(record), record)


if __name__ == "__main__":
    main()
