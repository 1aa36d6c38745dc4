"""What every logical plan satisfies, checked after lowering and after each rewrite.

A plan that fails is a fault of the planner, never of the program: it raises `InvalidPlan` with the operator.
"""

from __future__ import annotations

from collections.abc import Collection

import networkx as nx

from qpdsl.grammar.words import COLUMNS
from qpdsl.planner import ops
from qpdsl.planner.logical import LogicalPlan
from qpdsl.planner.reads import column_expressions, names, parameter_expressions


class InvalidPlan(RuntimeError):
    """The planner made a plan that breaks its own rules."""


def verify(plan: LogicalPlan, params: Collection[str], *, body: bool = False) -> None:
    """Raises `InvalidPlan` unless the plan over these parameters is well formed; `body` says it is a `repeat`'s."""
    graph = plan.graph
    _hold(nx.is_directed_acyclic_graph(graph), "the plan has a cycle")
    _hold(plan.root in graph, "the root is no operator of the plan")
    _hold([node for node in graph if not graph.out_degree(node)] == [plan.root], "an operator leads nowhere")
    for node in graph:
        _verify_operator(plan, node, params, body=body)
    if not body:
        _hold(isinstance(plan.op(plan.root), ops.Return), "the plan does not end in a return")


def _verify_operator(plan: LogicalPlan, node: str, params: Collection[str], *, body: bool) -> None:
    op, columns, producers = plan.op(node), plan.columns(node), plan.inputs(node)
    if isinstance(op, ops.Start):
        _hold(not producers, f"start {node} has a producer")
        return
    _hold(len(producers) == 1, f"{op} has {len(producers)} producers")
    before = plan.columns(producers[0])
    if isinstance(op, ops.SetContext):
        _hold(set(COLUMNS) <= set(columns), f"{op} leaves out columns that every row has")
    else:
        _hold(set(before) <= set(columns), f"{op} loses columns")
    made = {ops.Score: "into", ops.Extract: "column"}.get(type(op))
    if made is not None:
        _hold(getattr(op, made) in columns, f"{op} does not make its column")
    if isinstance(op, ops.Vote):
        _hold(op.column in before, f"{op} votes on a column that is not there")
    if isinstance(op, ops.Return):
        _hold(node == plan.root and not body, f"{op} is not the end of the program")
    if isinstance(op, ops.Repeat):
        start = next(inner for inner in op.body.graph if isinstance(op.body.op(inner), ops.Start))
        _hold(op.body.columns(start) == before, f"the body of {op} starts with other columns")
        verify(op.body, params, body=True)
        before = columns
    for expr in parameter_expressions(op):
        _hold(all(name.id in params for name in names(expr)), f"{op} reads what is no parameter")
    for expr in column_expressions(op):
        _hold(all(name.id in before or name.id in params for name in names(expr)), f"{op} reads an unknown column")


def _hold(condition: bool, message: str) -> None:
    if not condition:
        raise InvalidPlan(message)
