"""Building a plan in which each operator reads the one before it."""

from __future__ import annotations

from collections.abc import Mapping

import networkx as nx

from qpdsl.planner.logical import LogicalPlan
from qpdsl.planner.ops import Operator, Start


class Chain:
    """A plan under construction. Operators are keyed by their stage, the start by `start`."""

    def __init__(self, start: Start, columns: Mapping[str, str]) -> None:
        self._graph: nx.DiGraph[str] = nx.DiGraph()
        self._last = "start"
        self._graph.add_node("start", op=start, columns=dict(columns))

    def add(self, op: Operator, columns: Mapping[str, str]) -> None:
        """Appends an operator that makes a relation of these columns."""
        node = str(op.stage)
        self._graph.add_node(node, op=op, columns=dict(columns))
        self._graph.add_edge(self._last, node)
        self._last = node

    def done(self) -> LogicalPlan:
        """The plan as it stands, frozen."""
        return LogicalPlan(nx.freeze(self._graph), self._last)
