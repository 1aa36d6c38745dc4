"""Compute-optimal search: right answers of a budgeted program at several budgets, beside every fixed strategy.

    python -m benchmarks.search.budget [--problems 500] [--output FOLDER] [--show-only]

Every fixed strategy of `accuracy.py` and every way of `compute_optimal` runs over the shipped problems. The policy for
a budget is learned from the ways' runs on one half of the problems and then really run on the other half, both ways
round. What has ended is written down at once: a run that was stopped goes on where it was. Writes `budget.json`, `.md`
and `.svg` into the folder.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
import torch

from benchmarks.common.folders import RESULTS
from benchmarks.common.machine import describe, sentence
from benchmarks.search.accuracy import STRATEGIES
from benchmarks.search.budget_page import NAME, Figures, Line, show
from benchmarks.search.part_runs import PartRun, PartRuns
from benchmarks.search.planned import DATA, problems, program
from qpdsl.arguments import with_defaults
from qpdsl.budgets.observations import UNSURE, Observations, by_spend, nested_strategies
from qpdsl.budgets.policy_for import learned_policy
from qpdsl.planner.plan.budget_policy import BudgetPolicy, FixedStrategy
from qpdsl.planner.plan.logical import LogicalProgram
from qpdsl.planner.plan.naive import plan as naive_plan
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.planner.strategies.written_strategies import fixed, strategies_of
from qpdsl.runs.data.input_row import InputRow
from qpdsl.session.planning import Planning, reads_of
from qpdsl.session.session import Session
from qpdsl.session.settings import SessionSettings

PROGRAM = "compute_optimal"
# Sampled tokens a problem.
BUDGETS = (100, 250, 500, 1000)
HALVES = (0, 1)
# A strategy that the program's own ways are.
_WAYS = ("dvts",)


def measure(count: int, folder: Path) -> None:
    """Runs what has not run yet over the first `count` problems, and writes the figures when all of it has."""
    runs = PartRuns(folder / f"{NAME}.journal", {"problems": count, "machine": describe()})
    if runs.ended:
        print(f"  going on: {len(runs.ended)} runs had ended; to start over, remove {runs.path}")
    lowered = program(PROGRAM)
    ways = ways_of(PROGRAM)
    # The sessions share samples, which is exact: tokens are counted as if each strategy ran alone.
    sessions = [Session(share_samples=True) for _ in HALVES]
    plans = {way.label: planned(way.program) for way in ways} | dict(_strategies())
    ended = {
        name: [runs.get(name, half, plan, _half(plan, count, half), sessions[half]) for half in HALVES]
        for name, plan in plans.items()
    }
    seen = [observed(ways, [ended[way.label][half] for way in ways]) for half in HALVES]
    budgeted = []
    for budget in BUDGETS:
        policies = [learned_policy(seen[1 - half], "tokens", budget, [DATA]) for half in HALVES]
        budget_plans = [planned(lowered, policy) for policy in policies]
        tried = [
            runs.get(f"budget {budget}", half, plan, _half(plan, count, half), Session())
            for half, plan in enumerate(budget_plans)
        ]
        expected = fmean(policy.expected or 0.0 for policy in policies)
        budgeted.append(Line.of(f"budget {budget}", tried, budget=float(budget), expected=expected))
    figures = Figures(count, sentence(), [Line.of(name, tried) for name, tried in ended.items()], budgeted)
    (folder / f"{NAME}.json").write_text(json.dumps(figures.to_json(), indent=1) + "\n", encoding="utf-8")
    show(folder)
    runs.path.unlink()


@dataclass(frozen=True)
class Way:
    """A strategy of a program that leaves something open, as a program of its own."""

    way: FixedStrategy
    program: LogicalProgram

    @property
    def label(self) -> str:
        return f"{PROGRAM}, {self.way.name}"


def ways_of(name: str) -> list[Way]:
    """All strategies of a shipped program."""
    lowered = program(name)
    return [Way(way, fixed(lowered, way)) for way in strategies_of(lowered)]


def _strategies() -> Iterator[tuple[str, PhysicalPlan]]:
    """Every fixed strategy at every budget, but for those that are ways of the program too."""
    for name, budgets in STRATEGIES.items():
        for budget, values in budgets.items() if name not in _WAYS else ():
            yield f"{name} {budget}", planned(with_defaults(program(name), dict(values)))


def _half(plan: PhysicalPlan, count: int, half: int) -> list[InputRow]:
    """Every second problem."""
    return problems(plan, count)[half::2]


def planned(lowered: LogicalProgram, policy: BudgetPolicy | None = None) -> PhysicalPlan:
    """The plan as it runs, which keeps how sure it is of each problem."""
    return Planning().optimized(lowered, reads_of(lowered), SessionSettings(), support=True, policy=policy).plan


def observed(ways: Sequence[Way], runs: Sequence[PartRun]) -> Observations:
    """What the ways came to on one part of the problems."""
    chains = [naive_plan(way.program).ops for way in ways]
    support = [[UNSURE if sure is None else sure for sure in run.support] for run in runs]
    return by_spend(
        [way.way for way in ways],
        [str(number) for number in range(len(runs[0].correct))],
        np.array([run.correct for run in runs], dtype=np.float64).T,
        np.array([run.tokens for run in runs], dtype=np.float64).T,
        np.array(support, dtype=np.float64).T,
        nested_strategies(chains),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=500)
    parser.add_argument("--output", type=Path, default=RESULTS, help="the folder for the results")
    parser.add_argument("--show-only", action="store_true", help="write table and picture from the figures there are")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.show_only:
        show(arguments.output)
    else:
        measure(arguments.problems, arguments.output)


if __name__ == "__main__":
    main()
