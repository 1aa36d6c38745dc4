"""What every plan satisfies, besides what its operators check where they are built.

A plan is a chain of operators, each of which reads the rows of the one before it; inside a `repeat`, a `branch` and
other stages with blocks there are chains again. One checker goes over such chains, for logical plans after lowering and
for physical ones after each rule that changed them. What only one kind of plan can break is checked beside it: the
shape of a logical plan's graph, and the ids that a physical plan's strategies name.

A plan that fails is a fault of the planner, never of the program: it raises `InvalidPlan` with the operator.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import networkx as nx

from qpdsl.planner.plan import ops
from qpdsl.planner.plan.ops import LogicalPlan, inner_plans, require
from qpdsl.planner.plan.physical import GenerateStrategy, PhysicalOp, PhysicalPlan, ScoreStrategy, everything
from qpdsl.planner.plan.reads import (
    column_expressions,
    columns_inside,
    inner_expressions,
    made_columns,
    named_columns,
    names,
    own_names,
    parameter_expressions,
)

Columns = Mapping[str, str]


def verify_logical(plan: LogicalPlan, params: Collection[str]) -> None:
    """Raises `InvalidPlan` unless the plan over these parameters is well formed."""
    _verify_program(_links_of_graph(plan, {}), params)


def verify_physical(plan: PhysicalPlan) -> None:
    """Raises `InvalidPlan` unless the plan is well formed."""
    nodes = list(everything(plan.ops))
    known = {node.id: node for node in nodes}
    require(len(known) == len(nodes), "two operators have one id")
    _verify_program(_links_of_operators(plan.ops), {param.name for param in plan.params})
    for node in nodes:
        _verify_references(node, known)


@dataclass(frozen=True, slots=True)
class _Link:
    """One operator of a chain: what messages call it, the columns of the rows it makes, and the chains inside it."""

    label: str
    op: ops.Operator
    columns: Columns
    inside: tuple[tuple[_Link, ...], ...]

    def require(self, condition: bool, message: str) -> None:
        require(condition, f"{self.label} {message}")


def _verify_program(chain: tuple[_Link, ...], params: Collection[str]) -> None:
    if len(chain) == 1 and isinstance(chain[0].op, ops.Strategy):
        for way in chain[0].inside:
            _verify_program(way, params)
        return
    require(bool(chain) and isinstance(chain[-1].op, ops.Return), "the plan does not end in a return")
    _verify_chain(chain, {}, params)
    returns = sum(isinstance(link.op, ops.Return) for link in _everything(chain))
    require(returns == 1, "a return is not the end of the program")


def _verify_chain(chain: tuple[_Link, ...], before: Columns, params: Collection[str]) -> None:
    """Checks operators one after another, of which the first reads rows of the columns `before`."""
    for link in chain:
        _verify_columns(link, before)
        _verify_expressions(link, before, params)
        for inner in link.inside:
            _verify_chain(inner, columns_inside(link.op, before), params)
        before = link.columns


def _verify_columns(link: _Link, before: Columns) -> None:
    """An operator keeps the columns of the rows it reads, adds those that it makes, and has no others."""
    made = made_columns(link.op, [inner[-1].columns for inner in link.inside if inner])
    link.require(before.keys() <= link.columns.keys(), "loses columns")
    link.require(made <= link.columns.keys(), "leaves out columns that it makes")
    link.require(link.columns.keys() <= before.keys() | made, "has columns that nothing makes")


def _verify_expressions(link: _Link, before: Columns, params: Collection[str]) -> None:
    """An operator reads what is there: parameters, and columns of the rows before it.

    The condition of a `repeat` and the value of a search read the columns that their bodies make.
    """
    op, readable = link.op, link.columns if isinstance(link.op, ops.Repeat | ops.Search) else before
    link.require(all(name in before for name in named_columns(op)), "reads a column that is not there")
    for expr in parameter_expressions(op):
        link.require(all(name.id in params for name in names(expr)), "reads what is no parameter")
    made_inside = link.inside[0][-1].columns if isinstance(op, ops.Call) and link.inside[0] else {}
    checked = [(column_expressions(op), readable), (inner_expressions(op), made_inside)]
    for expressions, columns in checked:
        for expr in expressions:
            known = all(name.id in columns or name.id in params or name.id in own_names(op) for name in names(expr))
            link.require(known, "reads an unknown column")


def _everything(chain: Iterable[_Link]) -> Iterable[_Link]:
    for link in chain:
        yield link
        for inner in link.inside:
            yield from _everything(inner)


def _links_of_graph(plan: LogicalPlan, before: Columns) -> tuple[_Link, ...]:
    """The operators of a logical plan in order, its start left out, which has the columns `before`."""
    graph = plan.graph
    require(nx.is_directed_acyclic_graph(graph), "the plan has a cycle")
    require(plan.root in graph, "the root is no operator of the plan")
    require([node for node in graph if not graph.out_degree(node)] == [plan.root], "an operator leads nowhere")
    # With one producer each and one end, the operators are a chain.
    start, *order = nx.topological_sort(graph)
    require(isinstance(plan.op(start), ops.Start), "the plan does not begin with a start")
    require(plan.columns(start) == before, "the plan starts with other columns than those before it")
    links = []
    for node in order:
        op, label = plan.op(node), f"operator {node} ({type(plan.op(node)).__name__})"
        producers = plan.inputs(node)
        require(not isinstance(op, ops.Start), f"{label} is not the start of its plan")
        require(len(producers) == 1, f"{label} has {len(producers)} producers")
        before = plan.columns(producers[0])
        first = columns_inside(op, before)
        inside = tuple(_links_of_graph(inner, first) for inner in inner_plans(op))
        links.append(_Link(label, op, plan.columns(node), inside))
    return tuple(links)


def _links_of_operators(chain: tuple[PhysicalOp, ...]) -> tuple[_Link, ...]:
    return tuple(
        _Link(
            f"operator {node.id} ({type(node.op).__name__})",
            node.op,
            node.columns,
            tuple(_links_of_operators(inner) for inner in node.inside),
        )
        for node in chain
    )


def _verify_references(node: PhysicalOp, known: Mapping[str, PhysicalOp]) -> None:
    """The operators that a strategy names are there, and of the kind that it means."""
    match node.strategy:
        case GenerateStrategy(vote=str(vote)):
            require(vote in known and isinstance(known[vote].op, ops.Vote), f"operator {node.id} leads to no vote")
        case ScoreStrategy(same_as=str(same)):
            alike = same in known and type(known[same].op) is type(node.op)
            require(alike, f"operator {node.id} has nothing to be the same as")
