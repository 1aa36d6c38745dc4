"""What every plan satisfies, besides what its operators check where they are built.

A plan is a chain of operators, each of which reads the rows of the one before it; inside a `repeat`, a `branch` and
other stages with blocks there are chains again. One checker goes over such chains, for logical plans after lowering and
for physical ones after each rule that changed them. What only a physical plan can break is checked beside it: the ids
that its strategies name.

A plan that fails is a fault of the planner, never of the program: it raises `InvalidPlan` with the operator.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from qpdsl.planner.plan import ops
from qpdsl.planner.plan.logical import LogicalOp, LogicalPlan
from qpdsl.planner.plan.ops import require
from qpdsl.planner.plan.physical import GenerateStrategy, PhysicalOp, PhysicalPlan, ScoreStrategy, everything
from qpdsl.planner.plan.reads import (
    column_expressions,
    columns_inside,
    inner_expressions,
    last_columns,
    made_columns,
    named_columns,
    names,
    own_names,
    parameter_expressions,
)

Columns = Mapping[str, str]
Node = LogicalOp | PhysicalOp
Nodes = tuple[LogicalOp, ...] | tuple[PhysicalOp, ...]


def verify_logical(plan: LogicalPlan, params: Collection[str]) -> None:
    """Raises `InvalidPlan` unless the plan over these parameters is well formed."""
    _verify_program(plan, params)


def verify_physical(plan: PhysicalPlan) -> None:
    """Raises `InvalidPlan` unless the plan is well formed."""
    nodes = list(everything(plan.ops))
    known = {node.id: node for node in nodes}
    require(len(known) == len(nodes), "two operators have one id")
    _verify_program(plan.ops, {param.name for param in plan.params})
    for node in nodes:
        _verify_references(node, known)


def _verify_program(chain: Nodes, params: Collection[str]) -> None:
    if len(chain) == 1 and isinstance(chain[0].op, ops.Strategy):
        for way in chain[0].inside:
            _verify_program(way, params)
        return
    require(bool(chain) and isinstance(chain[-1].op, ops.Return), "the plan does not end in a return")
    _verify_chain(chain, {}, params)
    returns = sum(isinstance(node.op, ops.Return) for node in _everything(chain))
    require(returns == 1, "a return is not the end of the program")


def _verify_chain(chain: Nodes, before: Columns, params: Collection[str]) -> None:
    """Checks operators one after another, of which the first reads rows of the columns `before`."""
    for node in chain:
        _verify_columns(node, before)
        _verify_expressions(node, before, params)
        for inner in node.inside:
            _verify_chain(inner, columns_inside(node.op, before), params)
        before = node.columns


def _verify_columns(node: Node, before: Columns) -> None:
    """An operator keeps the columns of the rows it reads, adds those that it makes, and has no others."""
    made = made_columns(node.op, [inner[-1].columns for inner in node.inside if inner])
    _require(node, before.keys() <= node.columns.keys(), "loses columns")
    _require(node, made <= node.columns.keys(), "leaves out columns that it makes")
    _require(node, len(node.columns) == len(before) + len(made - before.keys()), "has columns that nothing makes")


def _verify_expressions(node: Node, before: Columns, params: Collection[str]) -> None:
    """An operator reads what is there: parameters, and columns of the rows before it.

    The condition of a `repeat` and the value of a search read the columns that their bodies make.
    """
    op, readable = node.op, node.columns if isinstance(node.op, ops.Repeat | ops.Search) else before
    _require(node, all(name in before for name in named_columns(op)), "reads a column that is not there")
    for expr in parameter_expressions(op):
        _require(node, all(name.id in params for name in names(expr)), "reads what is no parameter")
    made_inside = last_columns(next(iter(node.inside), ()), columns_inside(op, {})) if isinstance(op, ops.Call) else {}
    checked = [(column_expressions(op), readable), (inner_expressions(op), made_inside)]
    for expressions, columns in checked:
        for expr in expressions:
            known = all(name.id in columns or name.id in params or name.id in own_names(op) for name in names(expr))
            _require(node, known, "reads an unknown column")


def _require(node: Node, condition: bool, message: str) -> None:
    number = node.id if isinstance(node, PhysicalOp) else node.op.stage
    require(condition, f"operator {number} ({node.op.operator}) {message}")


def _everything(chain: Nodes) -> Iterator[Node]:
    for node in chain:
        yield node
        for inner in node.inside:
            yield from _everything(inner)


def _verify_references(node: PhysicalOp, known: Mapping[str, PhysicalOp]) -> None:
    """The operators that a strategy names are there, and of the kind that it means."""
    match node.strategy:
        case GenerateStrategy(vote=str(vote)):
            require(
                vote in known and isinstance(known[vote].op, ops.Vote | ops.Keep),
                f"operator {node.id} leads to no vote",
            )
        case ScoreStrategy(same_as=str(same)):
            alike = same in known and type(known[same].op) is type(node.op)
            require(alike, f"operator {node.id} has nothing to be the same as")
