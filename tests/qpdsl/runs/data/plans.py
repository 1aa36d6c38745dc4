"""Plans to read data for."""

from __future__ import annotations

from qpdsl.grammar.parse.parser import parse_file
from qpdsl.grammar.source import Source
from qpdsl.planner.check.program import lower
from qpdsl.planner.plan.naive import plan
from qpdsl.planner.plan.physical import PhysicalPlan


def planned(params: str) -> PhysicalPlan:
    text = f'program p({params}) -> text {{\n chat user="x"\n generate "zoo/counting" n=n\n return text\n}}'
    return plan(lower(parse_file(Source("p.qp", text))))


PLAN = planned("problem: text, n: int = 4")
