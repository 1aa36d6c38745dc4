"""What every plan satisfies."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qpdsl.planner.plan.logical import LogicalPlan
from qpdsl.planner.plan.ops import InvalidPlan
from qpdsl.planner.plan.verify import verify_logical
from tests.support.planner.lowered import START, lowered


def test_verify_finds_what_a_rewrite_may_break() -> None:
    program = lowered(START + "vote answer")
    params = {param.name for param in program.params}
    verify_logical(program.plan, params)

    def broken(change: str) -> LogicalPlan:
        chain = list(program.plan)
        columns = dict(chain[4].columns)
        match change:
            case "lost column":
                chain[4] = replace(chain[4], columns={"text": "text"})
            case "column from nowhere":
                chain[4] = replace(chain[4], columns={**columns, "other": "text"})
            case "unknown column":
                kept = {name: type_ for name, type_ in chain[3].columns.items() if name != "answer"}
                chain[3] = replace(chain[3], columns=kept)
            case "no return":
                chain.pop()
            case "return inside":
                chain.insert(2, chain[-1])
        return tuple(chain)

    changes = ("lost column", "column from nowhere", "unknown column", "no return", "return inside")
    for change in changes:
        with pytest.raises(InvalidPlan):
            verify_logical(broken(change), params)
    with pytest.raises(InvalidPlan):
        verify_logical(program.plan, set())
