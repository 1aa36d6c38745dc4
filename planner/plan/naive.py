"""Logical plan to the naive physical plan: every operator in the plainest way there is, with an estimate of its rows.

The estimate uses the values of the parameters. It is the greatest possible number of rows, as if every round of a
`repeat` ran, no row finished early and no `where` left one out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from qpdsl.grammar import ast
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.evaluate import Scope, evaluate
from qpdsl.planner.plan.logical import LogicalProgram, default_values
from qpdsl.planner.plan.ops import LogicalPlan
from qpdsl.planner.plan.options import constant
from qpdsl.planner.plan.physical import (
    GenerateStrategy,
    PhysicalOp,
    PhysicalPlan,
    Tolerance,
    everything,
    plainest,
)
from qpdsl.planner.plan.rewrite import Chain, map_chain

Rows = float | None
# A search that grows without bound is not worth counting beyond this.
_LIMIT = 1e15
# Rounds that are run one by one; those after them are taken to grow as these did last.
_ROUNDS = 64


def plan(program: LogicalProgram, reads: tuple[str, ...] | None = None, *, support: bool = False) -> PhysicalPlan:
    """The naive plan: it runs the program as it is written, and shares, keeps and merges nothing.

    `reads`, `support`: see `PhysicalPlan`.
    """
    rows = _estimate(program.plan, 1.0, 1.0, default_values(program.params))
    physical = _with_figures(_operators(program.plan, rows, ""))
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
        within=_tolerance(program.within, lossy=lossy),
        prefer=program.prefer,
        reads=reads,
        support=support,
    )


def _tolerance(within: ast.Within | None, *, lossy: bool) -> Tolerance:
    """What the program permits; its `via` is a permission in itself."""
    if within is None:
        return Tolerance("lossy" if lossy else "exact")
    if within.level == "replayable" or within.level == "recorded":
        return Tolerance("lossy" if lossy else "exact", repeats=within.level)
    return Tolerance(within.level, within.bound, "exact" if within.level == "exact" else "replayable")


def _declared(program: LogicalProgram) -> dict[str, ast.Expr | None]:
    """The defaults as the program's text has them, also where the caller put values in their place."""
    if program.syntax is None:
        return {param.name: param.default for param in program.params}
    return {param.name: constant(param.default) for param in program.syntax.params}


def _operators(logical: LogicalPlan, rows: _RowEstimate, prefix: str) -> tuple[PhysicalOp, ...]:
    """The operators in running order. A start makes no rows of its own, so it is no physical operator.

    Ids go on inside: "3.0" is the first operator of operator 3's body, "3.1.0" that of its second arm.
    """
    order = [node for node in logical.order() if not isinstance(logical.op(node), ops.Start)]
    physical = []
    for index, node in enumerate(order):
        op, id = logical.op(node), f"{prefix}{index}"
        body: tuple[PhysicalOp, ...] = ()
        arms: tuple[tuple[PhysicalOp, ...], ...] = ()
        if isinstance(op, ops.Repeat | ops.Search | ops.Each | ops.Peek | ops.Ask | ops.Call):
            body = _operators(op.body, rows.inside[node][0], f"{id}.")
        elif isinstance(op, ops.Branch | ops.If):
            inside = enumerate(zip(op.arms, rows.inside[node], strict=True))
            arms = tuple(_operators(arm, arm_rows, f"{id}.{number}.") for number, (arm, arm_rows) in inside)
        strategy = plainest(op)
        physical.append(
            PhysicalOp(
                id=id,
                op=op,
                equivalence=strategy.decode.equivalence if isinstance(strategy, GenerateStrategy) else "exact",
                rows=rows.rows[node],
                columns=logical.columns(node),
                body=body,
                arms=arms,
                strategy=strategy,
            )
        )
    return tuple(physical)


def _with_figures(chain: Chain) -> Chain:
    """The operators, told of their draws what the program reads of some, where each token is drawn by one model."""
    if not any(isinstance(node.op, ops.DrawScore) for node in everything(chain)):
        return chain

    def told(node: PhysicalOp) -> PhysicalOp:
        if not isinstance(node.op, ops.Generate) or not isinstance(node.strategy, GenerateStrategy):
            return node
        drawn = node.op.via is None and node.strategy.decode.whole
        return replace(node, strategy=replace(node.strategy, figures=drawn))

    return map_chain(chain, told)


@dataclass(slots=True)
class _RowEstimate:
    """Rows that an operator makes in all, for each operator of a plan, and for those of the plans inside it.

    `inside` holds one estimate for the body of a `repeat`, one an arm for a `branch`. `groups` is how many groups the
    last rows are in.
    """

    rows: dict[str, Rows] = field(default_factory=dict)
    inside: dict[str, tuple[_RowEstimate, ...]] = field(default_factory=dict)
    groups: Rows = 1.0


def _estimate(plan: LogicalPlan, start: Rows, groups: Rows, values: Scope) -> _RowEstimate:
    """What a plan makes of `start` rows in so many groups, under these values of the parameters."""
    result = _RowEstimate(groups=groups)
    for node in plan.order():
        op = plan.op(node)
        inputs = [result.rows[producer] for producer in plan.inputs(node)]
        before = inputs[0] if inputs else start
        if isinstance(op, ops.Repeat):
            result.rows[node], body = _repeat(op, before, result.groups, values)
            result.inside[node] = (body,)
            result.groups = body.groups
        elif isinstance(op, ops.Search):
            body = _scaled(_estimate(op.body, 1.0, 1.0, values), _product(before, _number(op.simulations, values)))
            result.rows[node], result.inside[node] = body.rows[op.body.root], (body,)
        elif isinstance(op, ops.Peek):
            result.rows[node] = before
            result.inside[node] = (_estimate(op.body, before, result.groups, values),)
        elif isinstance(op, ops.Call | ops.Ask):
            result.rows[node] = before
            result.inside[node] = (_scaled(_estimate(op.body, 1.0, 1.0, values), before),)
        elif isinstance(op, ops.Each):
            # How long a list will be is known of nobody's values but those of a parameter.
            body = _estimate(op.body, _product(before, _length(op.source, values)), result.groups, values)
            result.rows[node], result.inside[node] = body.rows[op.body.root], (body,)
            result.groups = body.groups
        elif isinstance(op, ops.If):
            arms = tuple(_estimate(arm, before, result.groups, values) for arm in op.arms)
            made = [rows.rows[arm.root] for arm, rows in zip(op.arms, arms, strict=True)]
            result.rows[node] = _greatest([*made, before] if len(op.arms) == 1 else made)
            result.inside[node] = arms
        elif isinstance(op, ops.Branch):
            arms = tuple(_estimate(arm, before, result.groups, values) for arm in op.arms)
            result.rows[node] = _total(rows.rows[arm.root] for arm, rows in zip(op.arms, arms, strict=True))
            result.inside[node] = arms
        else:
            result.rows[node] = _rows_made(op, before, result.groups, values)
            if isinstance(op, ops.Split) and op.per is None:
                result.groups = result.rows[node]
    return result


def _rows_made(op: ops.Operator, before: Rows, groups: Rows, values: Scope) -> Rows:
    match op:
        case ops.Generate(n=n):
            return _product(before, _number(n, values))
        case ops.Split(count=count, by=by, per=per) if by is not None:
            return _number(count, values) if per is None else _of_groups(_number(count, values), per, groups, None)
        case ops.Split(count=count):
            return _product(before, _number(count, values))
        case ops.TopK(k=k, per=per):
            most = _number(k, values)
            return _least(before, most if per is None else _of_groups(most, per, groups, before))
        case ops.Vote(per=per) | ops.Join(per=per) | ops.Tournament(per=per):
            return 1.0 if per is None else _least(before, _of_groups(1.0, per, groups, before))
        case ops.Return():
            return 1.0
    return before


def _of_groups(each: Rows, per: str, groups: Rows, otherwise: Rows) -> Rows:
    """So many rows of each value of a column: how many values a column has is known of the groups alone."""
    return _product(each, groups) if per == "group" else otherwise


def _least(left: Rows, right: Rows) -> Rows:
    known = [rows for rows in (left, right) if rows is not None]
    return 1.0 if 1.0 in known else min(known) if len(known) == 2 else None


def _greatest(counts: list[Rows]) -> Rows:
    known = [rows for rows in counts if rows is not None]
    return max(known) if len(known) == len(counts) else None


def _length(source: ast.Expr | ast.JsonPath, values: Scope) -> Rows:
    """How many elements a list has, None where that is not known before the run."""
    listed = None if isinstance(source, ast.JsonPath) else evaluate(source, values)
    return float(len(listed)) if isinstance(listed, tuple) else None


def _repeat(op: ops.Repeat, before: Rows, groups: Rows, values: Scope) -> tuple[Rows, _RowEstimate]:
    """The rows that the last round leaves, and the sums over the rounds; rounds alike are run once."""
    rounds = _number(op.limit, values)
    if before is None or rounds is None:
        single = _estimate(op.body, before, groups, values)
        return single.rows[op.body.root], _scaled(single, None)
    total: _RowEstimate | None = None
    last: _RowEstimate | None = None
    rows: Rows = before
    done = 0
    while done < rounds:
        now = _estimate(op.body, rows, groups, values)
        after, groups = now.rows[op.body.root], now.groups
        steady = after == rows or after is None or after >= _LIMIT
        left = rounds - done
        if done >= _ROUNDS and not steady and last is not None and rows is not None and after is not None:
            grown = min(after + (after - rows) * (left - 1), _LIMIT)
            return max(grown, 0.0), _sum(total, _growing(last, now, left))
        times = left if steady else 1
        total = _sum(total, _scaled(now, times))
        rows, done, last = after, done + int(times), now
    return rows, total or _scaled(_estimate(op.body, rows, groups, values), 0)


def _growing(last: _RowEstimate, now: _RowEstimate, rounds: float) -> _RowEstimate:
    """The sums over rounds of which `now` is the first; each grows on the one before it as `now` grew on `last`."""

    def sum_of(before: Rows, after: Rows) -> Rows:
        if before is None or after is None:
            return None
        return min(max(after * rounds + (after - before) * rounds * (rounds - 1) / 2, 0.0), _LIMIT)

    inside = {
        node: tuple(_growing(*pair, rounds) for pair in zip(last.inside[node], now.inside[node], strict=True))
        for node in now.inside
    }
    return _RowEstimate({node: sum_of(last.rows[node], rows) for node, rows in now.rows.items()}, inside, now.groups)


def _scaled(estimate: _RowEstimate, times: Rows) -> _RowEstimate:
    return _RowEstimate(
        {node: _product(rows, times) for node, rows in estimate.rows.items()},
        {node: tuple(_scaled(inner, times) for inner in inside) for node, inside in estimate.inside.items()},
        estimate.groups,
    )


def _sum(left: _RowEstimate | None, right: _RowEstimate) -> _RowEstimate:
    if left is None:
        return right
    rows = {node: _total((left.rows[node], right.rows[node])) for node in right.rows}
    inside = {
        node: tuple(_sum(*pair) for pair in zip(left.inside[node], right.inside[node], strict=True))
        for node in right.inside
    }
    return _RowEstimate(rows, inside, right.groups)


def _total(counts: Iterable[Rows]) -> Rows:
    total = 0.0
    for rows in counts:
        if rows is None:
            return None
        total += rows
    return min(total, _LIMIT)


def _product(left: Rows, right: Rows) -> Rows:
    return None if left is None or right is None else min(left * right, _LIMIT)


def _number(expr: ast.Expr, values: Scope) -> Rows:
    """The number that an expression gives under these values, None where it needs a parameter that has none."""
    value = evaluate(expr, values)
    return float(min(value, _LIMIT)) if isinstance(value, (int, float)) else None
