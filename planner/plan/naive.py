"""Logical plan to the naive physical plan: every operator in the plainest way there is, with an estimate of its rows.

The estimate uses the values of the parameters. It is the greatest possible number of rows, as if every round of a
`repeat` ran, no row finished early and no `where` left one out.

What greedy decoding would have answered: the program that a search is measured against.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from qpdsl.grammar import ast
from qpdsl.grammar.ast.walk import made_column
from qpdsl.grammar.words import COLUMNS
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.evaluate import Scope, evaluate
from qpdsl.planner.plan.logical import LogicalOp, LogicalPlan, LogicalProgram, default_values
from qpdsl.planner.plan.options import constant, left_out
from qpdsl.planner.plan.physical import (
    GenerateStrategy,
    PhysicalOp,
    PhysicalPlan,
    Tolerance,
    everything,
    holds,
    plainest,
)
from qpdsl.planner.plan.reads import column_expressions, most_ahead, names, reads_figures, value_ahead
from qpdsl.planner.plan.rule import Chain, map_chain
from qpdsl.planner.plan.verify import verify_logical

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
        source=program.source,
        params=program.params,
        declared=_declared(program),
        models=program.models,
        ops=physical,
        returns=program.returns,
        record=program.record,
        score_column=program.score_column,
        equivalence="lossy" if lossy else "exact",
        within=_tolerance(program.within, lossy=lossy),
        prefer=program.prefer,
        budget=program.budget,
        deadline=program.deadline,
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
    like = program.syntax.like
    return {param.name: left_out(param, like) or constant(param.default) for param in program.syntax.params}


def _operators(logical: LogicalPlan, rows: _RowEstimate, prefix: str) -> tuple[PhysicalOp, ...]:
    """The operators in running order.

    Ids go on inside: "3.0" is the first operator of operator 3's body, "3.1.0" that of its second arm.
    """
    physical = []
    for index, (node, made, inside) in enumerate(zip(logical, rows.rows, rows.inside, strict=True)):
        id, strategy = f"{prefix}{index}", plainest(node.op)
        several = holds(node.op) == "arms"
        chains = tuple(
            _operators(inner, inner_rows, f"{id}.{number}." if several else f"{id}.")
            for number, (inner, inner_rows) in enumerate(zip(node.inside, inside, strict=True))
        )
        physical.append(
            PhysicalOp(
                id=id,
                op=node.op,
                equivalence=strategy.decode.equivalence if isinstance(strategy, GenerateStrategy) else "exact",
                rows=made,
                columns=node.columns,
                body=chains[0] if chains and not several else (),
                arms=chains if several else (),
                strategy=strategy,
            )
        )
    return tuple(physical)


def _with_figures(chain: Chain) -> Chain:
    """The operators, told of their draws what the program reads of some, where each is from one distribution."""
    if not reads_figures(chain):
        return chain

    def told(node: PhysicalOp) -> PhysicalOp:
        if not isinstance(node.op, ops.Generate) or not isinstance(node.strategy, GenerateStrategy):
            return node
        contrasts = isinstance(node.op.via, ops.Contrast)
        drawn = contrasts or (node.op.via is None and node.strategy.decode.whole)
        return replace(node, strategy=replace(node.strategy, figures=drawn))

    return map_chain(chain, told)


@dataclass(slots=True)
class _RowEstimate:
    """Rows that an operator makes in all, for each operator of a plan, and for those of the plans inside it.

    `start` rows go into the plan; `groups` is how many groups the last rows are in.
    """

    start: Rows
    groups: Rows = 1.0
    rows: list[Rows] = field(default_factory=list)
    inside: list[tuple[_RowEstimate, ...]] = field(default_factory=list)

    @property
    def last(self) -> Rows:
        """The rows that come out of the plan."""
        return self.rows[-1] if self.rows else self.start


def _estimate(plan: LogicalPlan, start: Rows, groups: Rows, values: Scope) -> _RowEstimate:
    """What a plan makes of `start` rows in so many groups, under these values of the parameters."""
    result = _RowEstimate(start, groups)
    for node in plan:
        rows, inside = _estimated(node, result.last, result.groups, values)
        result.rows.append(rows)
        result.inside.append(inside)
        if isinstance(node.op, ops.Split) and node.op.per is None:
            result.groups = rows
        elif isinstance(node.op, ops.Repeat | ops.Each):
            result.groups = inside[0].groups
    return result


def _estimated(node: LogicalOp, before: Rows, groups: Rows, values: Scope) -> tuple[Rows, tuple[_RowEstimate, ...]]:
    """The rows that an operator makes, and what the plans inside it do."""
    op = node.op
    if not node.inside:
        return _rows_made(op, before, groups, values), ()
    if isinstance(op, ops.Repeat):
        rows, body = _repeat(op, node.inside[0], before, groups, values)
        return rows, (body,)
    if isinstance(op, ops.Search):
        times = _product(before, _number(op.simulations, values))
        body = _scaled(_estimate(node.inside[0], 1.0, 1.0, values), times)
        return body.last, (body,)
    if isinstance(op, ops.Call | ops.Ask) or (isinstance(op, ops.Peek) and op.alone):
        return before, (_scaled(_estimate(node.inside[0], 1.0, 1.0, values), before),)
    # How long a list will be is known of nobody's values but those of a parameter.
    start = _product(before, _length(op.source, values)) if isinstance(op, ops.Each) else before
    inside = tuple(_estimate(inner, start, groups, values) for inner in node.inside)
    made = [inner.last for inner in inside]
    if isinstance(op, ops.If):
        return _greatest([*made, before] if len(made) == 1 else made), inside
    return (before if op.rows == "same" else _total(made)), inside


def _rows_made(op: ops.Operator, before: Rows, groups: Rows, values: Scope) -> Rows:
    match op:
        case ops.Generate(n=n):
            return _product(before, _number(n, values))
        case ops.Split(count=count, by=by, per=per) if by is not None:
            return _number(count, values) if per is None else _of_groups(_number(count, values), per, groups, None)
        case ops.Split(count=count):
            return _product(before, _number(count, values))
    if op.rows not in ("count", "one"):
        return before
    # These are the fields of all stages that keep so many rows.
    kept = getattr(op, "count", None)
    most = 1.0 if kept is None else most_ahead(kept, before, values)
    if (grouped := getattr(op, "per", None)) is not None:
        return _least(before, _of_groups(most, grouped, groups, before))
    return 1.0 if op.rows == "one" else _least(before, most)


def _of_groups(each: Rows, per: ast.Name, groups: Rows, otherwise: Rows) -> Rows:
    """So many rows of each value of a column: how many values a column has is known of the groups alone."""
    return _product(each, groups) if per.id == "group" else otherwise


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


def _repeat(op: ops.Repeat, body: LogicalPlan, before: Rows, groups: Rows, values: Scope) -> tuple[Rows, _RowEstimate]:
    """The rows that the last round leaves, and the sums over the rounds; rounds alike are run once."""
    rounds = _number(op.limit, values)
    if op.gather is not None:
        single = _estimate(body, before, groups, values)
        return _product(single.last, rounds), _scaled(single, rounds)
    if before is None or rounds is None:
        single = _estimate(body, before, groups, values)
        return single.last, _scaled(single, None)
    total: _RowEstimate | None = None
    last: _RowEstimate | None = None
    rows: Rows = before
    done = 0
    while done < rounds:
        now = _estimate(body, rows, groups, values)
        after, groups = now.last, now.groups
        steady = after == rows or after is None or after >= _LIMIT
        left = rounds - done
        if done >= _ROUNDS and not steady and last is not None and rows is not None and after is not None:
            grown = min(after + (after - rows) * (left - 1), _LIMIT)
            return max(grown, 0.0), _sum(total, _combined(_growing(left), last, now))
        times = left if steady else 1
        total = _sum(total, _scaled(now, times))
        rows, done, last = after, done + int(times), now
    return rows, total or _scaled(_estimate(body, rows, groups, values), 0)


def _growing(rounds: float) -> Callable[[Rows, Rows], Rows]:
    """The sum over rounds, of which the second argument is the first; each grows on the one before it as that did."""

    def sum_of(before: Rows, after: Rows) -> Rows:
        if before is None or after is None:
            return None
        return min(max(after * rounds + (after - before) * rounds * (rounds - 1) / 2, 0.0), _LIMIT)

    return sum_of


def _combined(combine: Callable[[Rows, Rows], Rows], left: _RowEstimate, right: _RowEstimate) -> _RowEstimate:
    """One estimate of two of the same plan, operator by operator."""
    return _RowEstimate(
        combine(left.start, right.start),
        right.groups,
        [combine(*pair) for pair in zip(left.rows, right.rows, strict=True)],
        [
            tuple(_combined(combine, *pair) for pair in zip(*pairs, strict=True))
            for pairs in zip(left.inside, right.inside, strict=True)
        ],
    )


def _scaled(estimate: _RowEstimate, times: Rows) -> _RowEstimate:
    return _combined(lambda rows, _: _product(rows, times), estimate, estimate)


def _sum(left: _RowEstimate | None, right: _RowEstimate) -> _RowEstimate:
    return right if left is None else _combined(lambda *rows: _total(rows), left, right)


def _total(counts: Iterable[Rows]) -> Rows:
    total = 0.0
    for rows in counts:
        if rows is None:
            return None
        total += rows
    return min(total, _LIMIT)


def _product(left: Rows, right: Rows) -> Rows:
    return None if left is None or right is None else min(left * right, _LIMIT)


def _number(expr: ast.Expr | None, values: Scope) -> Rows:
    """The number that an expression gives under these values, None where it needs rows, or an argument."""
    value = value_ahead(expr, values)
    return float(min(value, _LIMIT)) if isinstance(value, (int, float)) else None


_READ_OUT = (ops.Extract, ops.PythonExtract)


def greedy_of(program: LogicalProgram) -> LogicalProgram | None:
    """The same questions to the same models, each answered once at temperature 0, read out as the program does.

    None where the program is that already, where it branches, where it writes a part of an answer itself, or where it
    goes on from what greedy decoding does not make (a score, what another program gave back).
    """
    walk = list(_walk(program.plan, depth=0))
    if any(isinstance(op, ops.Branch | ops.Say) for op, _, _ in walk):
        return None
    answers = _answers(walk)
    if not answers or _is_greedy(walk, answers):
        return None
    columns: dict[str, str] = {}
    params = {param.name for param in program.params}
    chain: list[LogicalOp] = []
    models: dict[str, str] = {}
    for op, _, types in walk:
        kept = next((answer for answer in answers if answer.stage == op.stage), None) if _generates(op) else op
        if kept is None or not isinstance(kept, (ops.SetContext, ops.Generate, ops.Return, ops.Let, *_READ_OUT)):
            continue
        if any(name.id not in columns and name.id not in params for e in column_expressions(kept) for name in names(e)):
            if isinstance(kept, ops.Let):  # whoever reads its column finds none
                continue
            return None
        column = made_column(kept)
        if isinstance(kept, ops.SetContext):
            columns = {**columns, **COLUMNS}
        elif column is not None:
            columns = {**{name: type_ for name, type_ in columns.items() if name != column}, column: types[column]}
        if isinstance(kept, ops.Generate):
            models[kept.model.name] = program.models[kept.model.name]
        chain.append(LogicalOp(kept, columns))
    plan = tuple(chain)
    verify_logical(plan, params)
    return replace(program, plan=plan, models=models, score_column=None, warnings=(), budget=None, ways=())


_Step = tuple[ops.Operator, int, Mapping[str, str]]


def _walk(plan: LogicalPlan, depth: int) -> Iterator[_Step]:
    """All operators in reading order, with how many `repeat`s they stand in and the columns that they leave."""
    for node in plan:
        yield node.op, depth, node.columns
        if isinstance(node.op, ops.Repeat | ops.Search):
            yield from _walk(node.inside[0], depth + 1)


def _generates(op: ops.Operator) -> bool:
    return isinstance(op, ops.Generate)


def _answers(walk: list[_Step]) -> list[ops.Generate]:
    """One generate for each question: the first after each context, decoded greedily."""
    answers: list[ops.Generate] = []
    context_depth = 0
    open_question = False
    for op, depth, _ in walk:
        if isinstance(op, ops.SetContext):
            context_depth, open_question = depth, True
        elif isinstance(op, ops.Generate) and open_question:
            answers.append(_greedy(op, whole=depth == context_depth))
            open_question = False
    return answers


def _is_greedy(walk: list[_Step], answers: list[ops.Generate]) -> bool:
    generates = [(op, depth) for op, depth, _ in walk if isinstance(op, ops.Generate)]
    if len(generates) != len(answers) or any(depth or op.via is not None for op, depth in generates):
        return False
    options = [(constant(op.n), constant(op.temperature)) for op, _ in generates]
    return all(
        isinstance(n, ast.Literal) and isinstance(t, ast.Literal) and n.value == 1 and t.value == 0 for n, t in options
    )


def _greedy(op: ops.Generate, *, whole: bool) -> ops.Generate:
    """One sample to its end. A bound on tokens holds for a whole sample; inside `repeat` it is one of a step."""
    one, zero = ast.Literal(1, span=op.span), ast.Literal(0.0, span=op.span)
    return ops.Generate(
        op.model,
        one,
        zero,
        max_tokens=op.max_tokens if whole else None,
        target=op.target,
        constraint=op.constraint,
        into=op.into,
        ordinal=op.ordinal,
        stage=op.stage,
        span=op.span,
    )
