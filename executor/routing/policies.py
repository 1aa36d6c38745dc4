"""Policies by name."""

from __future__ import annotations

from typing import Any

from qpdsl.executor.routing.drift import Restarts, SlidingWindow
from qpdsl.executor.routing.fixed import Fixed
from qpdsl.executor.routing.lin_ucb import LinUCB
from qpdsl.executor.routing.policy import Policy
from qpdsl.executor.routing.thompson import Thompson
from qpdsl.executor.routing.thresholds import Exponential

POLICIES = ("lin_ucb", "lin_ucb_upper", "thompson", "exponential", "fixed")
"""The names, the default first."""


def make_policy(
    name: str,
    arms: int,
    features: int,
    *,
    window: int | None = None,
    restart_every: int | None = None,
    restart_on_change: bool = False,
    **options: Any,
) -> Policy:
    """A policy by one of `POLICIES`, with the options of its class.

    Linear ones may know only the last `window` steps, or restart: every so many steps, when losses change, or both.
    ValueError for names, sizes and options that there are not, or that do not go together.
    """
    made: Policy
    try:
        match name:
            case "lin_ucb":
                made = LinUCB(arms, features, **options)
            case "lin_ucb_upper":
                made = LinUCB(arms, features, upper=True, **options)
            case "thompson":
                made = Thompson(arms, features, **options)
            case "exponential":
                made = Exponential(arms, features, **options)
            case "fixed":
                made = Fixed(arms, features, **options)
            case _:
                raise ValueError(f"there is no policy {name}; there are {', '.join(POLICIES)}")
    except TypeError as error:
        raise ValueError(f"the policy {name} does not take these options: {error}") from error
    if window is None and restart_every is None and not restart_on_change:
        return made
    if not isinstance(made, LinUCB | Thompson):
        raise ValueError(f"the policy {name} has no window and no restarts; lin_ucb and thompson have")
    if window is None:
        return Restarts(made, every=restart_every or 0, test=restart_on_change)
    if restart_every is not None or restart_on_change:
        raise ValueError("a policy has a window or restarts, not both")
    return SlidingWindow(made, window)
