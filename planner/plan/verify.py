"""What every logical plan satisfies, checked after lowering and after each rewrite.

A plan that fails is a fault of the planner, never of the program: it raises `InvalidPlan` with the operator.

MERGED: What every physical plan satisfies, checked after each rule that changed it.

A plan that fails is a fault of the planner, never of the program: it raises `InvalidPlan` with the operator.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import networkx as nx

from qpdsl.grammar.words import COLUMNS
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.ops import LogicalPlan
from qpdsl.planner.plan.physical import (
    BranchStrategy,
    GenerateStrategy,
    PhysicalOp,
    PhysicalPlan,
    ScoreStrategy,
    everything,
    plainest,
)
from qpdsl.planner.plan.reads import column_expressions, made_column, named_columns, names, parameter_expressions


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


def verify_physical(plan: PhysicalPlan) -> None:
    """Raises `InvalidPlan` unless the plan is well formed."""
    found = {op.id: op for op in everything(plan.ops)}
    _hold(len(found) == sum(1 for _ in everything(plan.ops)), "two operators have one id")
    _hold(bool(plan.ops) and isinstance(plan.ops[-1].op, ops.Return), "the plan does not end in a return")
    _hold(plan.in_flight is None or plan.in_flight >= 1, "no problem is in flight")
    _hold(plan.floor >= 0, "the floor is below nothing")
    params = {param.name for param in plan.params}
    _verify_chain(plan.ops, {}, params)
    for op in found.values():
        _verify_strategy(op, found)


def _verify_chain(chain: tuple[PhysicalOp, ...], before: Mapping[str, str], params: Collection[str]) -> None:
    """Operators one after another, of which the first gets rows of the columns `before`."""
    for index, node in enumerate(chain):
        wanted = (chain[index - 1].id,) if index else ()
        _hold(node.inputs == wanted, f"operator {node.id} does not read the one before it")
        _verify_physical_operator(node, before, params)
        _hold(not isinstance(node.op, ops.Return) or node is chain[-1], f"return {node.id} is not the end")
        before = node.columns


def _verify_physical_operator(node: PhysicalOp, before: Mapping[str, str], params: Collection[str]) -> None:
    op, columns = node.op, node.columns
    where = f"operator {node.id} ({type(op).__name__})"
    _hold(set(before) <= set(columns), f"{where} loses columns")
    made = made_column(op)
    _hold(made is None or made in columns, f"{where} does not make its column")
    if isinstance(op, ops.SetContext):
        _hold(set(COLUMNS) <= set(columns), f"{where} leaves out columns that every row has")
    _hold(all(name in before for name in named_columns(op)), f"{where} reads a column that is not there")
    _hold(isinstance(op, ops.Repeat | ops.Peek) == bool(node.body), f"{where} has no body, or one too many")
    _hold(isinstance(op, ops.Branch) == bool(node.arms), f"{where} has no arms, or some too many")
    for inner in (node.body, *node.arms):
        _verify_chain(inner, before, params)
    readable = columns if isinstance(op, ops.Repeat) else before
    for expr in parameter_expressions(op):
        _hold(all(name.id in params for name in names(expr)), f"{where} reads what is no parameter")
    for expr in column_expressions(op):
        known = all(name.id in readable or name.id in params for name in names(expr))
        _hold(known, f"{where} reads an unknown column")


def _verify_strategy(node: PhysicalOp, found: Mapping[str, PhysicalOp]) -> None:
    strategy, where = node.strategy, f"operator {node.id}"
    _hold(type(strategy) is type(plainest(node.op)), f"{where} is to run in a way of another operator's")
    if isinstance(strategy, GenerateStrategy):
        _hold(strategy.run_ahead >= 0, f"{where} runs back")
        vote = found.get(strategy.vote) if strategy.vote is not None else None
        _hold(
            strategy.vote is None or (vote is not None and isinstance(vote.op, ops.Vote)), f"{where} leads to no vote"
        )
    if isinstance(strategy, ScoreStrategy) and strategy.same_as is not None:
        first = found.get(strategy.same_as)
        _hold(first is not None and type(first.op) is type(node.op), f"{where} has nothing to be the same as")
    if isinstance(strategy, BranchStrategy):
        _hold(len(strategy.same_as) == len(node.arms), f"{where} does not say of each arm how it runs")
        earlier = all(first is None or 0 <= first < arm for arm, first in enumerate(strategy.same_as))
        _hold(earlier, f"an arm of {where} is the same as one after it")
