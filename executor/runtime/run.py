"""Running a physical plan: operators in order, loops by rounds, one coroutine an instance."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from qpdsl.executor.engine.ticket import EngineError
from qpdsl.executor.runtime.candidates import Candidates, Row
from qpdsl.executor.runtime.events import InstanceDone, InstanceStarted, OperatorDone
from qpdsl.executor.runtime.generate import generate
from qpdsl.executor.runtime.instance import Instance, RowError, Services
from qpdsl.executor.runtime.keys import hash_arguments
from qpdsl.executor.runtime.relational import extract, set_context, top_k, vote
from qpdsl.executor.runtime.score import score
from qpdsl.planner import ops
from qpdsl.planner.expr import Value, evaluate_rows
from qpdsl.planner.physical import PhysicalOp, PhysicalPlan


@dataclass(frozen=True, slots=True)
class Result:
    """What one instance gave: the program's value, its score (None without a `score` stage), its rows and its costs.

    `error` says why there is no value. Tokens are counted as `Usage` counts them; seconds are wall time.
    """

    value: Value
    score: float | None
    rows: Candidates
    prompt_tokens: int
    sampled_tokens: int
    near_ties: int
    seconds: float
    error: str | None = None


async def run(
    plan: PhysicalPlan, arguments: Mapping[str, Value], seed: int, services: Services, name: str = ""
) -> Result:
    """Runs one instance. A failure of this instance alone is reported in the result, not raised."""
    digest = hash_arguments([arguments.get(parameter.name) for parameter in plan.params])
    instance = Instance(name, services, arguments, seed, digest)
    services.events.emit(InstanceStarted(instance=name))
    start = time.monotonic()
    rows: Candidates = (Row(None, (), {}),)
    value: Value = None
    error: str | None = None
    try:
        rows = await _run_all(plan.ops, rows, instance)
        root = plan.ops[-1].op
        assert isinstance(root, ops.Return)
        value = evaluate_rows(root.value, [instance.scope(row) for row in rows], arguments) if rows else None
        if value is None:
            error = "no row is left" if not rows else "no row has a value to return"
    except (RowError, EngineError) as failure:
        rows, error = (), str(failure)
    except OverflowError:
        rows, error = (), "a number is too large to compute with"
    scored = rows[0].columns.get(plan.score_column) if rows and plan.score_column else None
    usage, seconds = instance.usage, time.monotonic() - start
    services.events.emit(
        InstanceDone(
            instance=name,
            prompt_tokens=usage.prompt_tokens,
            sampled_tokens=usage.sampled_tokens,
            seconds=seconds,
            error=error,
        )
    )
    return Result(
        value,
        scored if isinstance(scored, float) else None,
        rows,
        usage.prompt_tokens,
        usage.sampled_tokens,
        usage.near_ties,
        seconds,
        error,
    )


async def _run_all(plan: tuple[PhysicalOp, ...], rows: Candidates, instance: Instance) -> Candidates:
    """Operators in running order; each reads what its producer made."""
    made: dict[str, Candidates] = {}
    for node in plan:
        given = made[node.inputs[0]] if node.inputs else rows
        made[node.id] = await _run_one(node, given, instance)
    return made[plan[-1].id]


async def _run_one(node: PhysicalOp, rows: Candidates, instance: Instance) -> Candidates:
    usage = instance.usage
    prompt, sampled, start = usage.prompt_tokens, usage.sampled_tokens, time.monotonic()
    if isinstance(node.op, ops.Repeat):
        made = await _repeat(node, node.op, rows, instance)
    else:
        made = await _OPERATORS[type(node.op)](node.op, rows, instance)
    instance.services.events.emit(
        OperatorDone(
            instance=instance.name,
            operator=node.id,
            rows_in=len(rows),
            rows_out=len(made),
            prompt_tokens=usage.prompt_tokens - prompt,
            sampled_tokens=usage.sampled_tokens - sampled,
            seconds=time.monotonic() - start,
        )
    )
    return made


async def _repeat(node: PhysicalOp, op: ops.Repeat, rows: Candidates, instance: Instance) -> Candidates:
    outer = instance.rounds
    for index in range(instance.whole("repeat", op.limit)):
        if op.until is not None and evaluate_rows(op.until, [instance.scope(row) for row in rows], instance.arguments):
            break
        instance.rounds = (*outer, index)
        rows = await _run_all(node.body, rows, instance)
    instance.rounds = outer
    return rows


async def _same(op: ops.Operator, rows: Candidates, instance: Instance) -> Candidates:
    return rows


_OPERATORS: dict[type[ops.Operator], Callable[[Any, Candidates, Instance], Awaitable[Candidates]]] = {
    ops.Start: _same,
    ops.SetContext: set_context,
    ops.Generate: generate,
    ops.Score: score,
    ops.Extract: extract,
    ops.TopK: top_k,
    ops.Vote: vote,
    ops.Return: _same,
}
