"""The logical plan: a DAG of operators, and the relation that each of them makes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import networkx as nx

from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import Diagnostic
from qpdsl.planner.ops import Operator


@dataclass(frozen=True, slots=True)
class Parameter:
    """A program's parameter; `default` is None where the caller must give a value."""

    name: str
    type: str
    default: ast.Expr | None


@dataclass(frozen=True, slots=True)
class LogicalPlan:
    """Operators keyed by id in a frozen `networkx.DiGraph`; edges run from producer to consumer.

    Node data: `op` (the operator) and `columns` (name → type of the relation it makes, in order of appearance).
    Every operator but `Start` has one producer; `root` is the last operator.
    """

    graph: nx.DiGraph[str]
    root: str

    def op(self, node: str) -> Operator:
        op: Operator = self.graph.nodes[node]["op"]
        return op

    def columns(self, node: str) -> Mapping[str, str]:
        columns: Mapping[str, str] = self.graph.nodes[node]["columns"]
        return columns

    def inputs(self, node: str) -> tuple[str, ...]:
        return tuple(self.graph.predecessors(node))

    def order(self) -> Iterator[str]:
        """Node ids, producers first."""
        return iter(nx.lexicographical_topological_sort(self.graph, key=lambda node: self.op(node).stage))


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
