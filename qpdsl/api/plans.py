"""A plan to look at."""

from __future__ import annotations

from typing import Any

from qpdsl.planner.explain import explain, explain_json
from qpdsl.planner.physical import PhysicalPlan


class Plan:
    """How a program will run: text, data, and in a notebook a tree."""

    def __init__(self, physical: PhysicalPlan) -> None:
        self.physical = physical

    def to_json(self) -> dict[str, Any]:
        return explain_json(self.physical)

    def __str__(self) -> str:
        return explain(self.physical)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        from qpdsl.api.html import plan_html

        return plan_html(str(self).splitlines()[0], self.to_json())
