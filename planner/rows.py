"""Estimates of how many rows each operator makes, from the parameters' defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from qpdsl.grammar import ast
from qpdsl.planner import ops
from qpdsl.planner.expr import evaluate
from qpdsl.planner.logical import LogicalPlan, Parameter

Rows = float | None
# A search that grows without bound is not worth counting beyond this.
_LIMIT = 1e15


@dataclass(slots=True)
class Estimate:
    """Rows that an operator makes in all, for each operator of a plan, and for those of its bodies."""

    rows: dict[str, Rows] = field(default_factory=dict)
    bodies: dict[str, Estimate] = field(default_factory=dict)


def estimate(plan: LogicalPlan, params: tuple[Parameter, ...]) -> Estimate:
    """Rows as if every round of a `repeat` ran and no row finished early."""
    defaults = {param.name: param.default for param in params}
    return _run(plan, 1.0, defaults)


def _run(plan: LogicalPlan, start: Rows, defaults: Mapping[str, ast.Expr | None]) -> Estimate:
    result = Estimate()
    for node in plan.order():
        op = plan.op(node)
        inputs = [result.rows[producer] for producer in plan.inputs(node)]
        before = inputs[0] if inputs else start
        if isinstance(op, ops.Repeat):
            rounds = _value(op.limit, defaults)
            result.rows[node], result.bodies[node] = _repeat(op, before, rounds, defaults)
        else:
            result.rows[node] = _made(op, before, defaults)
    return result


def _made(op: ops.Operator, before: Rows, defaults: Mapping[str, ast.Expr | None]) -> Rows:
    match op:
        case ops.Generate(n=n):
            return _capped(before, _value(n, defaults))
        case ops.TopK(k=k):
            count = _value(k, defaults)
            known = [rows for rows in (before, count) if rows is not None]
            return 1.0 if 1.0 in known else min(known) if len(known) == 2 else None
        case ops.Vote() | ops.Return():
            return 1.0
    return before


def _repeat(
    op: ops.Repeat, before: Rows, rounds: Rows, defaults: Mapping[str, ast.Expr | None]
) -> tuple[Rows, Estimate]:
    """The rows that the last round leaves, and the sums over the rounds; rounds alike are run once."""
    if before is None or rounds is None:
        one = _run(op.body, before, defaults)
        return one.rows[op.body.root], _scaled(one, None)
    total: Estimate | None = None
    rows: Rows = before
    done = 0
    while done < rounds:
        one = _run(op.body, rows, defaults)
        after = one.rows[op.body.root]
        steady = after == rows or after is None or after >= _LIMIT
        times = rounds - done if steady else 1
        total = _sum(total, _scaled(one, times))
        rows, done = after, done + int(times)
    return rows, total or _scaled(_run(op.body, rows, defaults), 0)


def _scaled(estimate: Estimate, times: Rows) -> Estimate:
    return Estimate(
        {node: _capped(rows, times) for node, rows in estimate.rows.items()},
        {node: _scaled(body, times) for node, body in estimate.bodies.items()},
    )


def _sum(left: Estimate | None, right: Estimate) -> Estimate:
    if left is None:
        return right
    rows = {node: _plus(left.rows[node], right.rows[node]) for node in right.rows}
    bodies = {node: _sum(left.bodies[node], right.bodies[node]) for node in right.bodies}
    return Estimate(rows, bodies)


def _plus(left: Rows, right: Rows) -> Rows:
    return None if left is None or right is None else left + right


def _capped(left: Rows, right: Rows) -> Rows:
    return None if left is None or right is None else min(left * right, _LIMIT)


def _value(expr: ast.Expr, defaults: Mapping[str, ast.Expr | None]) -> Rows:
    """The number that an expression gives with every parameter at its default, None where one has none."""
    scope = {name: evaluate(default, {}) for name, default in defaults.items() if default is not None}
    value = evaluate(expr, scope)
    return float(min(value, _LIMIT)) if isinstance(value, (int, float)) else None
