"""How a plan came about: the naive plan, then the plan after each rule that changed it."""

from __future__ import annotations

from typing import Any

from qpdsl.planner import choose
from qpdsl.planner.explain import explain, explain_json
from qpdsl.planner.optimize import Optimized
from qpdsl.planner.rules import RULES

_DESCRIPTIONS = {**{rule.name: rule.description for rule in RULES}, choose.NAME: choose.DESCRIPTION}


def trace(optimized: Optimized) -> str:
    """The plans as text, each under what made it; at the end what every rule took."""
    parts = [f"the naive plan\n\n{explain(optimized.naive)}"]
    for change in optimized.changes:
        parts.append(f"{change.rule}: {_DESCRIPTIONS[change.rule]}\n\n{explain(change.plan)}")
    changed = {change.rule for change in optimized.changes}
    idle = [name for name in optimized.seconds if name not in changed]
    ends = [f"changed nothing: {', '.join(idle)}"] if idle else []
    ends += [f"disabled: {', '.join(optimized.disabled)}"] if optimized.disabled else []
    if optimized.seconds:
        ends.append("milliseconds: " + ", ".join(f"{name} {s * 1e3:.2f}" for name, s in optimized.seconds.items()))
    return "\n\n".join([*parts, "\n".join(ends)] if ends else parts)


def trace_json(optimized: Optimized) -> dict[str, Any]:
    """The plan as data, with how it came about under `trace`."""
    return {
        **explain_json(optimized.plan),
        "trace": {
            "naive": explain_json(optimized.naive),
            "changes": [
                {"rule": change.rule, "description": _DESCRIPTIONS[change.rule], "plan": explain_json(change.plan)}
                for change in optimized.changes
            ],
            "seconds": dict(optimized.seconds),
            "disabled": list(optimized.disabled),
        },
    }
