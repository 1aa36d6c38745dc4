"""Running a physical plan: operators in order, loops by rounds, one coroutine for each instance.

`_OPERATORS`, at the end, says which function runs which operator. To add an operator, write its function (in
`operators/`, or here where it runs other operators) and add its line there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from qpdsl.executor.events.events import InstanceDone, InstanceStarted
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.runtime.generate.decided_vote import run_decided_vote
from qpdsl.executor.runtime.generate.generate import generate
from qpdsl.executor.runtime.generate.run_ahead import Expansion
from qpdsl.executor.runtime.instance.candidates import FRESH, Candidates, JsonValue, Row
from qpdsl.executor.runtime.instance.instance import Instance, RowError, Services, Usage
from qpdsl.executor.runtime.instance.noise import hash_arguments
from qpdsl.executor.runtime.instance.operator_events import emit_changes, emit_done, emit_started
from qpdsl.executor.runtime.instance.row_clock import RowClock
from qpdsl.executor.runtime.instance.tasks import together
from qpdsl.executor.runtime.operators.context import set_context
from qpdsl.executor.runtime.operators.extract import extract
from qpdsl.executor.runtime.operators.judge import judge
from qpdsl.executor.runtime.operators.python_functions import python_extract, python_score
from qpdsl.executor.runtime.operators.relational import return_value, top_k, where, why_none
from qpdsl.executor.runtime.operators.score import log_prob, score
from qpdsl.executor.runtime.operators.split import split
from qpdsl.executor.runtime.operators.vote import vote
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.evaluate import Value, evaluate_rows
from qpdsl.planner.plan.physical import BranchStrategy, GenerateStrategy, PhysicalOp, PhysicalPlan

Operate = Callable[[PhysicalOp, Candidates, Instance], Awaitable[Candidates]]


@dataclass(frozen=True, slots=True)
class InstanceResult:
    """The result of one instance: the program's value, its score (None without a `score` stage), its rows, its costs.

    `error` says why there is no value. Tokens are counted as `Usage` counts them; seconds are wall time. `timed_out`:
    it took longer than it was given. `unscored`: rows without a score, as they were too long for a verifier or a judge.
    `counts`: those of its `Usage`.
    """

    value: JsonValue
    score: float | None
    rows: Candidates
    prompt_tokens: int
    sampled_tokens: int
    near_ties: int
    seconds: float
    error: str | None = None
    timed_out: bool = False
    unscored: int = 0
    counts: Mapping[str, int] = field(default_factory=dict, compare=False)


async def run(
    plan: PhysicalPlan,
    arguments: Mapping[str, Value],
    seed: int,
    services: Services,
    name: str = "",
    *,
    baseline: bool = False,
    timeout: float | None = None,
) -> InstanceResult:
    """Runs one instance. A failure of this instance alone is reported in the result, not raised.

    `baseline` marks it, in the events, as greedy decoding to compare with. After `timeout` seconds it fails, and its
    requests are given up; None lets it take as long as it takes.
    """
    digest = hash_arguments([arguments.get(parameter.name) for parameter in plan.params])
    clock = RowClock(timeout)
    instance = Instance(name, services, arguments, seed, digest, baseline, floor=plan.floor, clock=clock)
    services.events.emit(InstanceStarted(instance=name, baseline=baseline))
    start = time.monotonic()
    rows: Candidates = ()
    value: JsonValue = None
    error: str | None = None
    timed_out = False
    try:
        async with clock:
            rows = await _run_chain(plan.ops, (Row(None, (), {}),), instance)
        root = plan.ops[-1].op
        assert isinstance(root, ops.Return)
        value = return_value(root, rows, instance)
    except (RowError, EngineError) as failure:
        error = str(failure)
    except TimeoutError:
        timed_out, error = True, f"timed out: it took more than {timeout:g} s"
    except OverflowError:
        error = "a number is too large to compute with"
    column = rows[0].columns.get(plan.score_column) if rows and plan.score_column else None
    score = column if isinstance(column, float) else None
    usage, seconds = instance.usage, time.monotonic() - start
    services.events.emit(
        InstanceDone(
            instance=name,
            prompt_tokens=usage.prompt_tokens,
            sampled_tokens=usage.sampled_tokens,
            seconds=seconds,
            error=error,
            answer=None if error is not None else _as_text(value),
            score=score,
            path=rows[0].path if rows and error is None else (),
            baseline=baseline,
        )
    )
    return InstanceResult(
        value,
        score,
        rows,
        usage.prompt_tokens,
        usage.sampled_tokens,
        usage.near_ties,
        seconds,
        error,
        timed_out,
        usage.counts["unscored"],
        dict(usage.counts),
    )


def _as_text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


async def _run_chain(chain: tuple[PhysicalOp, ...], rows: Candidates, instance: Instance) -> Candidates:
    """Operators in running order, each on the rows of the one before it."""
    position = 0
    while position < len(chain):
        node, strategy = chain[position], chain[position].strategy
        if isinstance(strategy, GenerateStrategy) and strategy.vote is not None:
            end = next(number for number, later in enumerate(chain) if later.id == strategy.vote) + 1
            rows = await run_decided_vote(chain[position:end], rows, instance, _operate)
            position = end
        else:
            rows = await _run_one(node, rows, instance)
            position += 1
    return rows


async def _run_one(node: PhysicalOp, rows: Candidates, instance: Instance) -> Candidates:
    """One operator on all its rows, with its events."""
    start = time.monotonic()
    # The arms of a branch run side by side, so each operator counts what it spends in a usage of its own.
    own = replace(instance, usage=Usage(), operator=node.id)
    if instance.watched:
        emit_started(len(rows), own)
    try:
        rows_out = await _operate(node, rows, own)
    finally:
        instance.usage.add(own.usage)
    emit_done(len(rows), len(rows_out), time.monotonic() - start, own)
    if instance.watched:
        emit_changes(node.op, rows, rows_out, own)
    return rows_out


async def _operate(node: PhysicalOp, rows: Candidates, instance: Instance) -> Candidates:
    """The rows that an operator makes of rows, without events and accounts."""
    made = await _OPERATORS[type(node.op)](node, rows, instance)
    if rows and not made and not node.body:
        instance.emptied.append(why_none(node.op))
    return made


async def _repeat(node: PhysicalOp, rows: Candidates, instance: Instance) -> Candidates:
    op = node.op
    assert isinstance(op, ops.Repeat)
    limit = instance.whole("repeat", op.limit)
    ahead = Expansion(limit) if any(_runs_ahead(inner) for inner in node.body) else None
    try:
        for index in range(limit):
            scopes = [instance.scope(row) for row in rows]
            if op.until is not None and evaluate_rows(op.until, scopes, instance.arguments):
                break
            rows = await _run_chain(node.body, rows, replace(instance, rounds=(*instance.rounds, index), ahead=ahead))
    finally:
        if ahead is not None:
            ahead.close()
            instance.usage.counts.update(ahead.counts)
    return rows


def _runs_ahead(node: PhysicalOp) -> bool:
    return isinstance(node.strategy, GenerateStrategy) and node.strategy.run_ahead > 0


async def _peek(node: PhysicalOp, rows: Candidates, instance: Instance) -> Candidates:
    """The rows as they were, each with the columns that the body made of it."""
    after = await _run_chain(node.body, rows, replace(instance, ahead=None))
    return tuple(
        replace(
            row, columns={**row.columns, **{name: peek.columns[name] for name in peek.columns if name not in FRESH}}
        )
        for row, peek in zip(rows, after, strict=True)
    )


async def _call(node: PhysicalOp, rows: Candidates, instance: Instance) -> Candidates:
    """The rows as they were, each with what the called program gives back for it, which runs on a row of its own."""
    op = node.op
    assert isinstance(op, ops.Call)
    made = await together(
        # Scores that another operator reads again are kept for one chain of rows.
        _run_chain(node.body, (Row(None, row.path, {}),), replace(instance, ahead=None, steps={}))
        for row in rows
    )
    values = [
        evaluate_rows(op.value, [instance.scope(row) for row in last], instance.arguments) if last else None
        for last in made
    ]
    return tuple(row.with_column(op.into, value) for row, value in zip(rows, values, strict=True))


async def _branch(node: PhysicalOp, rows: Candidates, instance: Instance) -> Candidates:
    """Each arm on the rows, side by side; a column that an arm does not make is none in its rows.

    An arm that would make the rows of an earlier arm again gets copies of them, on its own paths.
    """
    same_as = node.strategy.same_as if isinstance(node.strategy, BranchStrategy) else (None,) * len(node.arms)
    distinct = [index for index, first in enumerate(same_as) if first is None]
    marks = {index: _ArmIndex(index) for index in distinct}
    arm_rows = await together(
        _run_chain(node.arms[index], tuple(replace(row, path=(*row.path, marks[index])) for row in rows), instance)
        for index in distinct
    )
    rows_of = dict(zip(distinct, arm_rows, strict=True))
    arms = [
        rows_of[index] if first is None else tuple(_on_arm(row, marks[first], index) for row in rows_of[first])
        for index, first in enumerate(same_as)
    ]
    return tuple(replace(row, columns={**dict.fromkeys(node.columns), **row.columns}) for arm in arms for row in arm)


class _ArmIndex(int):
    """An arm's index in the paths of its rows. It is found again by identity, since other indices can equal it."""


def _on_arm(row: Row, mark: _ArmIndex, arm: int) -> Row:
    """The row as if it came by another arm."""
    return replace(row, path=tuple(arm if index is mark else index for index in row.path))


async def _unchanged(node: PhysicalOp, rows: Candidates, instance: Instance) -> Candidates:
    return rows


def _plain(operator: Callable[[Any, Candidates, Instance], Awaitable[Candidates]]) -> Operate:
    """An operator that there is but one way to run."""
    return lambda node, rows, instance: operator(node.op, rows, instance)


def _with_strategy(operator: Callable[[Any, Candidates, Instance, Any], Awaitable[Candidates]]) -> Operate:
    """An operator that runs as its strategy says."""
    return lambda node, rows, instance: operator(node.op, rows, instance, node.strategy)


_OPERATORS: Mapping[type[ops.Operator], Operate] = {
    ops.Start: _unchanged,
    ops.SetContext: _plain(set_context),
    ops.Generate: _with_strategy(generate),
    ops.Score: _with_strategy(score),
    ops.Judge: _with_strategy(judge),
    ops.LogProb: _plain(log_prob),
    ops.PythonScore: _plain(python_score),
    ops.Extract: _plain(extract),
    ops.PythonExtract: _plain(python_extract),
    ops.Where: _plain(where),
    ops.TopK: _plain(top_k),
    ops.Vote: _plain(vote),
    ops.Split: _plain(split),
    ops.Repeat: _repeat,
    ops.Branch: _branch,
    ops.Peek: _peek,
    ops.Call: _call,
    ops.Return: _unchanged,
}
