"""Traces of routed steps, and policies replayed on them: with the losses of all arms, or as a run recorded its choices.

    python -m benchmarks.routing.route_trace TRACE

TRACE is the `--trace` of a run with `--router` and `--no-statistics`, which has its policies begin with nothing. Each
of them is given again what it saw in the run, and how many of its choices are the same is told.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.routing.regret import Arms
from qpdsl.executor.engine.step.routed_head import RouteChoice, policy_of
from qpdsl.executor.requests.routing import Routing
from qpdsl.executor.routing.policy import Floats, Policy


@dataclass(frozen=True, eq=False)
class RouteTrace:
    """T steps: `contexts` float64 [T, d]; `losses` float64 [T, A] of all arms; `taken` int64 [T]."""

    contexts: Floats
    losses: Floats
    taken: Arms


def replay(policy: Policy, contexts: Floats, losses: Floats) -> Arms:
    """The arms [T] that a policy takes on `contexts` [T, d], told the losses [T, A] of what it takes alone."""
    taken = np.empty(len(contexts), dtype=np.int64)
    for step, context in enumerate(contexts):
        arm = policy.choose(context)
        policy.learn(context, arm, float(losses[step, arm]))
        taken[step] = arm
    return taken


def choices_of(trace: Path) -> dict[tuple[str, str], list[RouteChoice]]:
    """The choices in the trace of a run, in order, by model and router."""
    found: dict[tuple[str, str], list[RouteChoice]] = {}
    with trace.open(encoding="utf-8") as lines:
        for line in lines:
            report = json.loads(line).get("report") or {}
            if choice := report.get("choice"):
                router, arm, loss, *context = choice
                found.setdefault((report["model"], router), []).append(RouteChoice(router, arm, loss, (*context,)))
    return found


def same_choices(choices: Iterable[RouteChoice]) -> int:
    """How many of the choices of one router its policy makes again, told what it was told."""
    policy: Policy | None = None
    same = 0
    for choice in choices:
        routing = Routing.named(choice.router)
        assert routing is not None
        policy = policy or policy_of(routing)
        same += routing.arms[policy.choose(choice.context)] == choice.arm
        policy.learn(choice.context, routing.arms.index(choice.arm), choice.loss)
    return same


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("trace", type=Path)
    for (model, router), choices in choices_of(options.parse_args().trace).items():
        print(f"{model}: router {router}: {same_choices(choices)} of {len(choices)} choices are the same")


if __name__ == "__main__":
    main()
