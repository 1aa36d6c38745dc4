"""The logical plan: a DAG of operators, and the relation that each of them makes.

MERGED: Building a plan in which each operator reads the one before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import networkx as nx

from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import Diagnostic
from qpdsl.planner.plan.ops import LogicalPlan, Operator, Start


@dataclass(frozen=True, slots=True)
class Parameter:
    """A program's parameter; `default` is None where the caller must give a value."""

    name: str
    type: str
    default: ast.Expr | None


@dataclass(frozen=True, slots=True)
class LogicalProgram:
    """One program, lowered and checked: what `planner.physical.plan` takes.

    `models` maps the names used in the program to model ids, in order of first use. `score_column` names the column
    that a row's score is reported from (the last `score` stage's), None without one. `within` and `prefer` (λ) say how
    far a plan may go, and for what. `warnings` is what the checker would have said otherwise.
    """

    name: str
    source_name: str
    params: tuple[Parameter, ...]
    models: Mapping[str, str]
    plan: LogicalPlan
    returns: str
    score_column: str | None = None
    within: ast.Within | None = None
    prefer: float | None = None
    syntax: ast.Program | None = field(default=None, repr=False, compare=False)
    warnings: tuple[Diagnostic, ...] = field(default=(), repr=False, compare=False)


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
