"""How a plan came about: the naive plan, then the plan after each rule that changed it."""

from __future__ import annotations

from typing import Any

from qpdsl.planner import choose
from qpdsl.planner.choice_text import choice_json, choice_text
from qpdsl.planner.explain import explain, explain_json
from qpdsl.planner.optimize import Optimized
from qpdsl.planner.rules import RULES

_DESCRIPTIONS = {rule.name: rule.description for rule in RULES}
_NOT_CHOSEN = "nothing was chosen by cost, as no device was measured: `qpdsl profile` does that"


def trace(optimized: Optimized) -> str:
    """The plans as text, each under what made it, and what was chosen from; at the end what every rule took."""
    parts = [f"the naive plan\n\n{explain(optimized.naive)}"]
    for change in optimized.changes:
        parts.append(f"{change.rule}: {_DESCRIPTIONS[change.rule]}\n\n{explain(change.plan)}")
    choice = optimized.choice
    if choice is not None:
        parts.append(f"{choose.NAME}: {choose.DESCRIPTION}\n\n{choice_text(choice)}\n\n{explain(choice.plan)}")
    changed = {change.rule for change in optimized.changes}
    idle = [name for name in optimized.seconds if name not in changed]
    ends = [f"changed nothing: {', '.join(idle)}"] if idle else []
    if choice is None and optimized.seconds and choose.NAME not in optimized.disabled:
        ends.append(_NOT_CHOSEN)
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
            "choice": None if optimized.choice is None else choice_json(optimized.choice),
            "seconds": dict(optimized.seconds),
            "disabled": list(optimized.disabled),
        },
    }
