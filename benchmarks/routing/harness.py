"""LLM-QP's three static claims on its synthetic harness, and what our policies come to on it.

    python -m benchmarks.routing.harness [--seeds 20] [--quick] [--output FOLDER]

The costs are a model (`synthetic.py`), the policies are those that serve (`executor/routing`). Choices are the same in
every run; what a policy itself takes is measured, as the least of three runs of each seed, in processor time of this
thread, with the making of its contexts and the learning. It is charged to the policy's loss, in a harness whose oracle
takes 94 millionths of a second a step.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.folders import RESULTS
from benchmarks.common.machine import describe
from benchmarks.common.results import write
from benchmarks.routing import synthetic
from benchmarks.routing.drift import Restarts, SlidingWindow
from benchmarks.routing.features import FEATURES, Contexts
from benchmarks.routing.harness_tables import draw, page
from benchmarks.routing.policies import make_policy
from benchmarks.routing.regret import Regret, cumulative, regret, variation
from benchmarks.routing.route_table import RouteTable
from benchmarks.routing.synthetic import AMORTIZED, DENSE, SPARSE, VOCABULARY, WEIGHT, Steps
from qpdsl.executor.routing.linear import LinUCB
from qpdsl.executor.routing.policy import Policy

FILE = "routing_harness"
STEPS = 1200
SHORT = ("one", "share")
FEATURE_SETS = {
    "K/V": SHORT,
    "log K": ("one", "log_share"),
    "K/V, log K": ("one", "share", "log_share"),
    "all six": FEATURES,
}
BETAS = (0.001, 0.01, 0.03, 0.1, 0.3, 1.0)
# Of the router: its uncertainty, what its prior counts, and without a prior.
BETA, ALPHA = 0.03, 1.0
COLD_BETA, COLD_ALPHA = 0.01, 0.01
# How often amortized refines, before anything is known.
GUESS = 0.5
_TIMED = 3
_SWEPT_SEEDS = 5
# Where the seeds begin of runs that a warm start has learned from.
_EARLIER = 1_000_003

# What chooses for a step of so many allowed ids at such a margin of the step before, and what learns from its loss.
Chooser = Callable[[int, float, int], int]
Learner = Callable[[int, float], None]
Router = tuple[Chooser, Learner]
Linear = LinUCB | Restarts | SlidingWindow
# A router for a seed, and its table if it has one.
Maker = Callable[[int], tuple[Router, RouteTable | None]]


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


def every_step(policy: Policy, names: tuple[str, ...]) -> Router:
    """A policy that is asked at every step."""
    contexts = Contexts(VOCABULARY, 1, STEPS, names)
    last = [np.zeros(len(names))]

    def choose(allowed: int, margin: float, step: int) -> int:
        last[0] = contexts.of(allowed, 1, margin, step)
        return policy.choose(last[0])

    def learn(arm: int, loss: float) -> None:
        policy.learn(last[0], arm, loss)

    return choose, learn


def tabled(policy: Linear) -> tuple[Router, RouteTable]:
    """A policy behind a table."""
    contexts = Contexts(VOCABULARY, names=SHORT)
    even, by_size = (
        (VOCABULARY * index / 64 for index in range(65)),
        (VOCABULARY ** (index / 16) for index in range(17)),
    )
    table = RouteTable(policy, lambda number: contexts.of(round(number)), sorted({*even, *by_size}))
    return (lambda allowed, margin, step: table.choose(allowed), table.learn), table


def asked(policy: Callable[[int], Policy], names: tuple[str, ...] = SHORT) -> Maker:
    """A policy of each seed, asked at every step."""
    return lambda seed: (every_step(policy(seed), names), None)


def behind(policy: Callable[[int], Linear]) -> Maker:
    """A policy of each seed, behind a table."""
    return lambda seed: tabled(policy(seed))


def walk(router: Router, steps: Steps) -> tuple[list[int], float]:
    """The arms that were taken, and the seconds of a step that the router took."""
    choose, learn = router
    allowed, paid = [int(number) for number in steps.allowed], steps.paid.tolist()
    margins = [0.0, *steps.margins.tolist()]
    taken = []
    start = time.thread_time()
    for step, (number, margin, losses) in enumerate(zip(allowed, margins, paid, strict=False)):
        arm = choose(number, margin, step)
        learn(arm, losses[arm])
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
            router, table = make(seed)
            taken, second = walk(router, steps)
            seconds.append(second)
        free.append(regret(steps.expected, taken))
        charged.append(regret(steps.expected, taken, charge=WEIGHT * min(seconds) * 1e3))
        asked.append(table.asked if table else len(taken))
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
        return LinUCB(3, len(SHORT), beta=COLD_BETA, alpha=COLD_ALPHA)
    return LinUCB(3, len(SHORT), beta=BETA, alpha=ALPHA, prior=synthetic.prior(SHORT, refine))


def warm(seed: int) -> LinUCB:
    """LinUCB without a prior that has learned from another run, of which half counts."""
    first, second = linear(), linear()
    walk(tabled(first)[0], synthetic.draw(STEPS, _EARLIER + seed))
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

    grid = [index / 20 / np.sqrt(2) for index in range(1, 21)]

    def thresholds(seed: int) -> Policy:
        return make_policy("exponential", 3, 2, seed=seed, feature=1, reached=AMORTIZED, below=SPARSE, thresholds=grid)

    def thompson(seed: int) -> Policy:
        return make_policy("thompson", 3, 2, beta=COLD_BETA, alpha=COLD_ALPHA, seed=seed)

    rows: list[tuple[str, Any, list[Steps]]] = [
        ("table, prior (the router)", behind(lambda seed: linear(GUESS)), runs),
        ("table, prior of the published 35%", behind(lambda seed: linear(0.35)), runs),
        ("table, prior that never refines", behind(lambda seed: linear(0.0)), runs),
        ("table, prior that always refines", behind(lambda seed: linear(1.0)), runs),
        ("table, no prior", behind(lambda seed: linear()), runs),
        ("table, no prior, warm", behind(warm), runs),
        ("table, prior; times ±5%", behind(lambda seed: linear(GUESS)), noisy),
        ("table, prior; times ±5%, drawn margins", behind(lambda seed: linear(GUESS)), chance),
        ("LinUCB every step, prior", asked(lambda seed: linear(GUESS)), runs),
        ("LinUCB every step, no prior", asked(lambda seed: linear()), runs),
        ("LinUCB every step, no prior; times ±5%, drawn margins", asked(lambda seed: linear()), chance),
        ("LinUCB as printed, β = 1", asked(lambda seed: make_policy("lin_ucb_upper", 3, 2, beta=1.0)), runs),
        ("Thompson every step, no prior", asked(thompson), runs),
        ("thresholds of K/V, sparse or amortized", asked(thresholds), runs),
    ]
    return fixed, [outcome(name, make, steps, timed) for name, make, steps in rows]


def _cold(name: str, features: int, beta: float, seed: int) -> Policy:
    return make_policy(name, 3, features, beta=beta, alpha=COLD_ALPHA)


def sweep(runs: list[Steps], quick: bool) -> list[dict[str, Any]]:
    """Policies by β and features, without a prior, asked at every step."""
    found = []
    for name in ("lin_ucb", "lin_ucb_upper", "thompson"):
        for label, names in list(FEATURE_SETS.items())[: 1 if quick else None]:
            for beta in BETAS[: 2 if quick else None]:
                reached = asdict(outcome(name, asked(partial(_cold, name, len(names), beta), names), runs, 1))
                found.append({"policy": name, "features": label, "beta": beta, **reached})
    return found


def drift(seeds: int, quick: bool) -> tuple[dict[str, float], list[Outcome], dict[str, list[float]]]:
    """Dense and sparse exchange what they cost half way: V_T with and without, the ways, and regrets over the steps."""
    runs = [synthetic.draw(STEPS, seed, swap=True) for seed in range(seeds)]
    still = [synthetic.draw(STEPS, seed) for seed in range(seeds)]
    variations = {
        "drifting": float(np.mean([variation(steps.expected) for steps in runs])),
        "still": float(np.mean([variation(steps.expected) for steps in still])),
    }
    ways: dict[str, Maker] = {
        "LinUCB every step": asked(lambda seed: linear()),
        "window of 100": asked(lambda seed: SlidingWindow(linear(), 100)),
        "window of 300": asked(lambda seed: SlidingWindow(linear(), 300)),
        "restarts every 300": asked(lambda seed: Restarts(linear(), every=300, test=False)),
        "restarts by the change test": asked(lambda seed: Restarts(linear())),
        "table, prior": behind(lambda seed: linear(GUESS)),
        "table, prior, restarts by the change test": behind(lambda seed: Restarts(linear(GUESS))),
    }
    found, curves = [], {}
    for name, way in list(ways.items())[:: 6 if quick else 1]:
        found.append(outcome(name, way, runs, 1))
        curves[name] = _curve(way(0)[0], runs[0])
    for arm, name in enumerate(synthetic.ARMS):
        reports = [regret(steps.expected, [arm] * STEPS) for steps in runs]
        found.append(summary(f"always {name}", reports, reports, [0.0], [0]))
    return variations, found, curves


def _curve(router: Router, steps: Steps) -> list[float]:
    """The dynamic regret of a router, up to every tenth step."""
    return [round(value, 4) for value in cumulative(steps.expected, walk(router, steps)[0])[::10].tolist()]


def curves_of(steps: Steps) -> Iterator[tuple[str, list[float]]]:
    yield "always sparse", [round(v, 4) for v in cumulative(steps.expected, [SPARSE] * STEPS)[::10].tolist()]
    yield "LinUCB every step, no prior", _curve(every_step(linear(), SHORT), steps)
    yield "table, no prior", _curve(tabled(linear())[0], steps)
    yield "table, prior (the router)", _curve(tabled(linear(GUESS))[0], steps)


def measure(seeds: int, quick: bool) -> dict[str, Any]:
    """The whole record."""
    runs = [synthetic.draw(STEPS, seed) for seed in range(seeds)]
    fixed, routers = claim_three(runs, 1 if quick else _TIMED)
    variations, drifting, drift_curves = drift(seeds, quick)
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
        "sweep": sweep(runs[: 1 if quick else _SWEPT_SEEDS], quick),
        "variations": variations,
        "drift": [asdict(each) for each in drifting],
        "drift_curves": drift_curves,
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seeds", type=int, default=20, help="runs of each way")
    options.add_argument("--quick", action="store_true", help="two seeds, a small sweep: does it work?")
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
