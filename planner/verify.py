"""What every logical plan satisfies, checked after lowering and after each rewrite.

A plan that fails is a fault of the planner, never of the program: it raises `InvalidPlan` with the operator.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import networkx as nx

from qpdsl.grammar.words import COLUMNS
from qpdsl.planner import ops
from qpdsl.planner.logical import LogicalPlan
from qpdsl.planner.reads import column_expressions, made_column, named_columns, names, parameter_expressions


class InvalidPlan(RuntimeError):
    """The planner made a plan that breaks its own rules."""


def verify(plan: LogicalPlan, params: Collection[str], *, body: bool = False) -> None:
    """Raises `InvalidPlan` unless the plan over these parameters is well formed.

    `body` says that it is that of a `repeat` or a `peek`, or an arm of a `branch`.
    """
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
    _hold(set(before) <= set(columns), f"{op} loses columns")
    if isinstance(op, ops.SetContext):
        _hold(set(COLUMNS) <= set(columns), f"{op} leaves out columns that every row has")
    made = made_column(op)
    _hold(made is None or made in columns, f"{op} does not make its column")
    _hold(all(name in before for name in named_columns(op)), f"{op} reads a column that is not there")
    if isinstance(op, ops.Return):
        _hold(node == plan.root and not body, f"{op} is not the end of the program")
    if isinstance(op, ops.Repeat):
        _verify_inner(op, op.body, before, params)
        before = columns
    if isinstance(op, ops.Peek):
        _verify_inner(op, op.body, before, params)
        _hold(set(op.body.columns(op.body.root)) <= set(columns), f"{op} loses columns of its body")
    if isinstance(op, ops.Branch):
        for arm in op.arms:
            _verify_inner(op, arm, before, params)
            _hold(set(arm.columns(arm.root)) <= set(columns), f"{op} loses columns of an arm")
    for expr in parameter_expressions(op):
        _hold(all(name.id in params for name in names(expr)), f"{op} reads what is no parameter")
    for expr in column_expressions(op):
        _hold(all(name.id in before or name.id in params for name in names(expr)), f"{op} reads an unknown column")


def _verify_inner(op: ops.Operator, plan: LogicalPlan, before: Mapping[str, str], params: Collection[str]) -> None:
    start = next(inner for inner in plan.graph if isinstance(plan.op(inner), ops.Start))
    _hold(plan.columns(start) == before, f"what {op} runs starts with other columns")
    verify(plan, params, body=True)


def _hold(condition: bool, message: str) -> None:
    if not condition:
        raise InvalidPlan(message)
