"""Running a physical plan: operators in order, loops by rounds, one coroutine an instance."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from qpdsl.executor.events.events import InstanceDone, InstanceStarted, OperatorDone
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.runtime.generate.decided_vote import decided
from qpdsl.executor.runtime.generate.generate import generate
from qpdsl.executor.runtime.generate.run_ahead import Expansion
from qpdsl.executor.runtime.instance.candidates import FRESH, Candidates, JsonValue, Row
from qpdsl.executor.runtime.instance.instance import Instance, RowError, Services, Usage
from qpdsl.executor.runtime.instance.noise import hash_arguments
from qpdsl.executor.runtime.instance.tasks import together
from qpdsl.executor.runtime.instance.tell import tell_done, tell_started, told
from qpdsl.executor.runtime.operators.columns import extract, log_prob, python_extract, python_score
from qpdsl.executor.runtime.operators.context import set_context
from qpdsl.executor.runtime.operators.judge import judge
from qpdsl.executor.runtime.operators.relational import assign, returned, split, top_k, where
from qpdsl.executor.runtime.operators.score import score
from qpdsl.executor.runtime.operators.vote import vote
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.evaluate import Value, evaluate_rows
from qpdsl.planner.plan.physical import BranchStrategy, GenerateStrategy, PhysicalOp, PhysicalPlan, ScoreStrategy


@dataclass(frozen=True, slots=True)
class Result:
    """What one instance gave: the program's value, its score (None without a `score` stage), its rows and its costs.

    `error` says why there is no value. Tokens are counted as `Usage` counts them; seconds are wall time.
    """

    value: JsonValue
    score: float | None
    rows: Candidates
    prompt_tokens: int
    sampled_tokens: int
    near_ties: int
    seconds: float
    error: str | None = None


async def run(
    plan: PhysicalPlan,
    arguments: Mapping[str, Value],
    seed: int,
    services: Services,
    name: str = "",
    *,
    baseline: bool = False,
) -> Result:
    """Runs one instance. A failure of this instance alone is reported in the result, not raised.

    `baseline` marks it, in the events, as greedy decoding to compare with.
    """
    digest = hash_arguments([arguments.get(parameter.name) for parameter in plan.params])
    instance = Instance(name, services, arguments, seed, digest, baseline, floor=plan.floor)
    services.events.emit(InstanceStarted(instance=name, baseline=baseline))
    start = time.monotonic()
    rows: Candidates = ()
    value: JsonValue = None
    error: str | None = None
    try:
        rows = await _run_all(plan.ops, (Row(None, (), {}),), instance)
        root = plan.ops[-1].op
        assert isinstance(root, ops.Return)
        value = returned(root, rows, instance)
    except (RowError, EngineError) as failure:
        error = str(failure)
    except OverflowError:
        error = "a number is too large to compute with"
    scored = rows[0].columns.get(plan.score_column) if rows and plan.score_column else None
    score = scored if isinstance(scored, float) else None
    usage, seconds = instance.usage, time.monotonic() - start
    services.events.emit(
        InstanceDone(
            instance=name,
            prompt_tokens=usage.prompt_tokens,
            sampled_tokens=usage.sampled_tokens,
            seconds=seconds,
            error=error,
            answer=None if error is not None else told(value),
            score=score,
            path=rows[0].path if rows and error is None else (),
            baseline=baseline,
        )
    )
    return Result(
        value,
        score,
        rows,
        usage.prompt_tokens,
        usage.sampled_tokens,
        usage.near_ties,
        seconds,
        error,
    )


async def _run_all(plan: tuple[PhysicalOp, ...], rows: Candidates, instance: Instance) -> Candidates:
    """Operators in running order, each on what the one before it made."""
    at = 0
    while at < len(plan):
        node, strategy = plan[at], plan[at].strategy
        if isinstance(strategy, GenerateStrategy) and strategy.vote is not None:
            end = next(number for number, later in enumerate(plan) if later.id == strategy.vote) + 1
            rows = await decided(plan[at:end], rows, instance, _operator)
            at = end
        else:
            rows = await _run_one(node, rows, instance)
            at += 1
    return rows


async def _run_one(node: PhysicalOp, rows: Candidates, instance: Instance) -> Candidates:
    """One operator on all its rows."""
    start = time.monotonic()
    # The arms of a branch run side by side, and each operator tells what it spent itself.
    own = replace(instance, usage=Usage(), operator=node.id)
    if instance.watched:
        tell_started(len(rows), own)
    try:
        if isinstance(node.op, ops.Repeat):
            made = await _repeat(node, node.op, rows, own)
        elif isinstance(node.op, ops.Branch):
            made = await _branch(node, rows, own)
        elif isinstance(node.op, ops.Peek):
            made = await _peek(node, rows, own)
        else:
            made = await _operator(node, rows, own)
    finally:
        instance.usage.add(own.usage)
    instance.services.events.emit(
        OperatorDone(
            instance=instance.name,
            operator=node.id,
            rows_in=len(rows),
            rows_out=len(made),
            prompt_tokens=own.usage.prompt_tokens,
            sampled_tokens=own.usage.sampled_tokens,
            seconds=time.monotonic() - start,
            cached_tokens=own.usage.cached_tokens,
            rounds=own.rounds,
            baseline=own.baseline,
            counts={**own.usage.counts, "near_ties": own.usage.near_ties},
        )
    )
    if instance.watched:
        tell_done(node.op, rows, made, own)
    return made


async def _operator(node: PhysicalOp, rows: Candidates, instance: Instance) -> Candidates:
    """What an operator without others inside it makes of rows, run as the plan says."""
    match node.op, node.strategy:
        case ops.Generate() as op, GenerateStrategy() as strategy:
            return await generate(op, rows, instance, strategy)
        case ops.Score() as op, ScoreStrategy() as strategy:
            return await score(op, rows, instance, strategy, node.id)
        case ops.Judge() as op, ScoreStrategy() as strategy:
            return await judge(op, rows, instance, strategy)
    return await _OPERATORS[type(node.op)](node.op, rows, instance)


async def _repeat(node: PhysicalOp, op: ops.Repeat, rows: Candidates, instance: Instance) -> Candidates:
    limit = instance.whole("repeat", op.limit)
    ahead = Expansion(limit) if any(_runs_ahead(inner) for inner in node.body) else None
    try:
        for index in range(limit):
            scopes = [instance.scope(row) for row in rows]
            if op.until is not None and evaluate_rows(op.until, scopes, instance.arguments):
                break
            rows = await _run_all(node.body, rows, replace(instance, rounds=(*instance.rounds, index), ahead=ahead))
    finally:
        if ahead is not None:
            ahead.close()
            instance.usage.counts.update(ahead.counts)
    return rows


async def _peek(node: PhysicalOp, rows: Candidates, instance: Instance) -> Candidates:
    """The rows as they were, each with the columns that the body made of it."""
    seen = await _run_all(node.body, rows, replace(instance, ahead=None))
    return tuple(
        replace(
            row, columns={**row.columns, **{name: there.columns[name] for name in there.columns if name not in FRESH}}
        )
        for row, there in zip(rows, seen, strict=True)
    )


def _runs_ahead(node: PhysicalOp) -> bool:
    return isinstance(node.strategy, GenerateStrategy) and node.strategy.run_ahead > 0


async def _branch(node: PhysicalOp, rows: Candidates, instance: Instance) -> Candidates:
    """Each arm on the rows, side by side; a column that an arm does not make is none in its rows.

    An arm that would make the rows of one before it again gets copies of them, on paths of its own.
    """
    same_as = node.strategy.same_as if isinstance(node.strategy, BranchStrategy) else (None,) * len(node.arms)
    run = [index for index, first in enumerate(same_as) if first is None]
    marks = {index: _Arm(index) for index in run}
    done = await together(
        _run_all(node.arms[index], tuple(replace(row, path=(*row.path, marks[index])) for row in rows), instance)
        for index in run
    )
    by_arm = dict(zip(run, done, strict=True))
    made = [
        by_arm[index] if first is None else tuple(_on_arm(row, marks[first], index) for row in by_arm[first])
        for index, first in enumerate(same_as)
    ]
    return tuple(replace(row, columns={**dict.fromkeys(node.columns), **row.columns}) for arm in made for row in arm)


class _Arm(int):
    """An arm's index in the paths of its rows, which is found again by being itself."""


def _on_arm(row: Row, mark: _Arm, arm: int) -> Row:
    """The row, as if it came by another arm."""
    return replace(row, path=tuple(arm if index is mark else index for index in row.path))


async def _same(op: ops.Operator, rows: Candidates, instance: Instance) -> Candidates:
    return rows


_OPERATORS: dict[type[ops.Operator], Callable[[Any, Candidates, Instance], Awaitable[Candidates]]] = {
    ops.Start: _same,
    ops.SetContext: set_context,
    ops.LogProb: log_prob,
    ops.PythonScore: python_score,
    ops.Extract: extract,
    ops.PythonExtract: python_extract,
    ops.Where: where,
    ops.TopK: top_k,
    ops.Vote: vote,
    ops.Split: split,
    ops.Assign: assign,
    ops.Return: _same,
}
