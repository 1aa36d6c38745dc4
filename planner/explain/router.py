"""What a router did in a run, in words and as data."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from qpdsl.planner.cost.run_figures import ExitRouterFigures, RouterFigures
from qpdsl.planner.explain.quantities import count, per_cent, seconds


def router_words(figures: RouterFigures) -> str:
    """The shares of the arms, what the choices took, and where it is known what others would have taken."""
    total = sum(figures.steps.values())
    shares = ", ".join(f"{arm} {per_cent(steps / total)}" for arm, steps in figures.steps.items() if steps)
    spent, head = (time / total * 1e6 for time in (figures.spent, figures.seconds))
    words = f"router {figures.policy}: {shares} of {count(total)} steps, {spent:.0f} µs a step to choose"
    words += f" beside {head:,.0f} µs in the head"
    regret = figures.regret
    if regret is None:
        return words
    return words + (
        f"; {regret.paid / regret.oracle:.3f} times the best choice of every step, "
        f"{regret.paid / regret.fixed:.3f} times always {regret.best_fixed} "
        f"(regret {seconds(regret.dynamic)} and {seconds(regret.static)}, "
        f"V_T {seconds(regret.variation)})"
    )


def exit_router_words(figures: ExitRouterFigures) -> str:
    """How many draws tried their exit, and by what that was decided."""
    total = sum(figures.draws.values())
    shares = ", ".join(f"{arm} {per_cent(draws / total)}" for arm, draws in figures.draws.items() if draws)
    return f"router {figures.policy} of {figures.where}: {shares} of {count(total)} draws, state {figures.state}"


def router_json(figures: RouterFigures) -> dict[str, Any]:
    """The same with stable keys."""
    return asdict(figures)
