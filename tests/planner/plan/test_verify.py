"""What every plan satisfies."""

from __future__ import annotations

import networkx as nx
import pytest

from qpdsl.planner.plan.ops import InvalidPlan, LogicalPlan
from qpdsl.planner.plan.verify import verify_logical
from tests.support.planner.lowered import START, lowered


def test_verify_finds_what_a_rewrite_may_break() -> None:
    program = lowered(START + "vote answer")
    params = {param.name for param in program.params}
    verify_logical(program.plan, params)

    def broken(change: str) -> LogicalPlan:
        graph = nx.DiGraph(program.plan.graph)
        if change == "cycle":
            graph.add_edge("4", "1")
        elif change == "second producer":
            graph.add_edge("0", "3")
        elif change == "dead end":
            graph.remove_edge("3", "4")
        elif change == "lost column":
            graph.nodes["4"]["columns"] = {"text": "text"}
        elif change == "column from nowhere":
            graph.nodes["4"]["columns"] = {**graph.nodes["4"]["columns"], "other": "text"}
        elif change == "unknown column":
            graph.nodes["3"]["columns"] = {k: v for k, v in graph.nodes["3"]["columns"].items() if k != "answer"}
        elif change == "no return":
            graph.remove_node("5")
            return LogicalPlan(graph, "4")
        return LogicalPlan(graph, "5")

    changes = (
        "cycle",
        "second producer",
        "dead end",
        "lost column",
        "column from nowhere",
        "unknown column",
        "no return",
    )
    for change in changes:
        with pytest.raises(InvalidPlan):
            verify_logical(broken(change), params)
    with pytest.raises(InvalidPlan):
        verify_logical(program.plan, set())
