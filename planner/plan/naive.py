"""Logical plan to the naive physical plan: every operator in the plainest way there is, with a row estimate.

MERGED: Estimates of how many rows each operator makes, from the parameters' defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from qpdsl.grammar import ast
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.evaluate import evaluate
from qpdsl.planner.plan.implementation import implementation
from qpdsl.planner.plan.logical import LogicalProgram, Parameter
from qpdsl.planner.plan.ops import LogicalPlan
from qpdsl.planner.plan.options import constant
from qpdsl.planner.plan.physical import Equivalence, PhysicalOp, PhysicalPlan, everything, plainest

Rows = float | None
Defaults = Mapping[str, ast.Expr | None]
# A search that grows without bound is not worth counting beyond this.
_LIMIT = 1e15
# Rounds that are run one by one; those after them are taken to grow as these did last.
_ROUNDS = 64


@dataclass(slots=True)
class Estimate:
    """Rows that an operator makes in all, for each operator of a plan, and for those of the plans inside it.

    `inside` holds one estimate for the body of a `repeat`, one an arm for a `branch`. `groups` is how many groups the
    last rows are in.
    """

    rows: dict[str, Rows] = field(default_factory=dict)
    inside: dict[str, tuple[Estimate, ...]] = field(default_factory=dict)
    groups: Rows = 1.0


def estimate(plan: LogicalPlan, params: tuple[Parameter, ...]) -> Estimate:
    """Rows as if every round of a `repeat` ran, no row finished early and no `where` left one out."""
    defaults = {param.name: param.default for param in params}
    return _run(plan, 1.0, 1.0, defaults)


def _run(plan: LogicalPlan, start: Rows, groups: Rows, defaults: Defaults) -> Estimate:
    result = Estimate(groups=groups)
    for node in plan.order():
        op = plan.op(node)
        inputs = [result.rows[producer] for producer in plan.inputs(node)]
        before = inputs[0] if inputs else start
        if isinstance(op, ops.Repeat):
            rounds = _value(op.limit, defaults)
            result.rows[node], body = _repeat(op, before, result.groups, rounds, defaults)
            result.inside[node] = (body,)
            result.groups = body.groups
        elif isinstance(op, ops.Peek):
            result.rows[node] = before
            result.inside[node] = (_run(op.body, before, result.groups, defaults),)
        elif isinstance(op, ops.Branch):
            arms = tuple(_run(arm, before, result.groups, defaults) for arm in op.arms)
            result.rows[node] = _total([made.rows[arm.root] for arm, made in zip(op.arms, arms, strict=True)])
            result.inside[node] = arms
        else:
            result.rows[node] = _made(op, before, result.groups, defaults)
            if isinstance(op, ops.Split):
                result.groups = result.rows[node]
    return result


def _made(op: ops.Operator, before: Rows, groups: Rows, defaults: Defaults) -> Rows:
    match op:
        case ops.Generate(n=n):
            return _capped(before, _value(n, defaults))
        case ops.Split(count=count, by=by) if by is not None:
            return _value(count, defaults)
        case ops.Split(count=count):
            return _capped(before, _value(count, defaults))
        case ops.TopK(k=k, per=per):
            most = _value(k, defaults)
            if per is not None:  # how many values a column has is known of the groups alone
                most = _capped(most, groups) if per == "group" else before
            known = [rows for rows in (before, most) if rows is not None]
            return 1.0 if 1.0 in known else min(known) if len(known) == 2 else None
        case ops.Vote() | ops.Return():
            return 1.0
    return before


def _repeat(op: ops.Repeat, before: Rows, groups: Rows, rounds: Rows, defaults: Defaults) -> tuple[Rows, Estimate]:
    """The rows that the last round leaves, and the sums over the rounds; rounds alike are run once."""
    if before is None or rounds is None:
        one = _run(op.body, before, groups, defaults)
        return one.rows[op.body.root], _scaled(one, None)
    total: Estimate | None = None
    before_last: Estimate | None = None
    rows: Rows = before
    done = 0
    while done < rounds:
        one = _run(op.body, rows, groups, defaults)
        after, groups = one.rows[op.body.root], one.groups
        steady = after == rows or after is None or after >= _LIMIT
        left = rounds - done
        if done >= _ROUNDS and not steady and before_last is not None and rows is not None and after is not None:
            grown = min(after + (after - rows) * (left - 1), _LIMIT)
            return max(grown, 0.0), _sum(total, _growing(before_last, one, left))
        times = left if steady else 1
        total = _sum(total, _scaled(one, times))
        rows, done, before_last = after, done + int(times), one
    return rows, total or _scaled(_run(op.body, rows, groups, defaults), 0)


def _growing(before: Estimate, one: Estimate, rounds: float) -> Estimate:
    """The sums over rounds of which `one` is the first, each as much more than the last as it is more than `before`."""

    def sum_of(last: Rows, now: Rows) -> Rows:
        if last is None or now is None:
            return None
        return min(max(now * rounds + (now - last) * rounds * (rounds - 1) / 2, 0.0), _LIMIT)

    inside = {
        node: tuple(
            _growing(last, now, rounds) for last, now in zip(before.inside[node], one.inside[node], strict=True)
        )
        for node in one.inside
    }
    return Estimate({node: sum_of(before.rows[node], rows) for node, rows in one.rows.items()}, inside, one.groups)


def _scaled(estimate: Estimate, times: Rows) -> Estimate:
    return Estimate(
        {node: _capped(rows, times) for node, rows in estimate.rows.items()},
        {node: tuple(_scaled(one, times) for one in inside) for node, inside in estimate.inside.items()},
        estimate.groups,
    )


def _sum(left: Estimate | None, right: Estimate) -> Estimate:
    if left is None:
        return right
    rows = {node: _total([left.rows[node], right.rows[node]]) for node in right.rows}
    inside = {
        node: tuple(_sum(one, other) for one, other in zip(left.inside[node], right.inside[node], strict=True))
        for node in right.inside
    }
    return Estimate(rows, inside, right.groups)


def _total(rows: list[Rows]) -> Rows:
    known = [each for each in rows if each is not None]
    return min(sum(known), _LIMIT) if len(known) == len(rows) else None


def _capped(left: Rows, right: Rows) -> Rows:
    return None if left is None or right is None else min(left * right, _LIMIT)


def _value(expr: ast.Expr, defaults: Defaults) -> Rows:
    """The number that an expression gives with every parameter at its default, None where one has none."""
    scope = {name: evaluate(default, {}) for name, default in defaults.items() if default is not None}
    value = evaluate(expr, scope)
    return float(min(value, _LIMIT)) if isinstance(value, (int, float)) else None


def plan(program: LogicalProgram, reads: tuple[str, ...] | None = None) -> PhysicalPlan:
    """The naive plan: it runs the program as it is written, and shares, keeps and merges nothing.

    `reads`: see `PhysicalPlan`.
    """
    rows = estimate(program.plan, program.params)
    physical = _operators(program.plan, rows, "")
    lossy = any(op.equivalence == "lossy" for op in everything(physical))
    return PhysicalPlan(
        name=program.name,
        source_name=program.source_name,
        params=program.params,
        declared=_declared(program),
        models=program.models,
        ops=physical,
        returns=program.returns,
        score_column=program.score_column,
        equivalence="lossy" if lossy else "exact",
        within=_within(program.within, lossy=lossy),
        prefer=program.prefer,
        reads=reads,
    )


def _within(within: ast.Within | None, *, lossy: bool) -> str:
    """The permission in the words of the program; `via` is one in itself."""
    if within is None:
        return "lossy" if lossy else "exact"
    return "exact" if within.bound is None else f"{within.level}({within.bound:g})"


def _declared(program: LogicalProgram) -> dict[str, ast.Expr | None]:
    """The defaults as the program's text has them, also where the caller put values in their place."""
    if program.syntax is None:
        return {param.name: param.default for param in program.params}
    return {param.name: constant(param.default) for param in program.syntax.params}


def _operators(logical: LogicalPlan, rows: Estimate, prefix: str) -> tuple[PhysicalOp, ...]:
    """The operators in running order. A start makes no rows of its own, so it is no physical operator.

    Ids go on inside: "3.0" is the first operator of operator 3's body, "3.1.0" that of its second arm.
    """
    order = [node for node in logical.order() if not isinstance(logical.op(node), ops.Start)]
    ids = {node: f"{prefix}{index}" for index, node in enumerate(order)}
    physical = []
    for node in order:
        op, id = logical.op(node), ids[node]
        body: tuple[PhysicalOp, ...] = ()
        arms: tuple[tuple[PhysicalOp, ...], ...] = ()
        if isinstance(op, ops.Repeat | ops.Peek):
            body = _operators(op.body, rows.inside[node][0], f"{id}.")
        elif isinstance(op, ops.Branch):
            inside = enumerate(zip(op.arms, rows.inside[node], strict=True))
            arms = tuple(_operators(arm, made, f"{id}.{index}.") for index, (arm, made) in inside)
        equivalence: Equivalence = "lossy" if isinstance(op, ops.Generate) and op.via is not None else "exact"
        physical.append(
            PhysicalOp(
                id=id,
                op=op,
                implementation=implementation(op, plainest(op)),
                equivalence=equivalence,
                rows=rows.rows[node],
                inputs=tuple(ids[producer] for producer in logical.inputs(node) if producer in ids),
                columns=logical.columns(node),
                body=body,
                arms=arms,
                strategy=plainest(op),
            )
        )
    return tuple(physical)
