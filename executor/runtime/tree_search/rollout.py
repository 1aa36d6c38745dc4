"""Rollouts: a row of a tree carried on to its end, step by step, by the block that makes children.

Each step takes one sample, greedily or as the block says. The path of a rollout is that of its row, and (-1, 0), which
no child has: so it depends on the row alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from qpdsl.executor.runtime.instance.candidates import Candidates, Row
from qpdsl.executor.runtime.instance.instance import Instance
from qpdsl.grammar import ast
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import PhysicalOp

RunChain = Callable[[tuple[PhysicalOp, ...], Candidates, Instance], Awaitable[Candidates]]
# Blocks whose rows go on behind them; others hold conversations of their own.
_GOES_ON = (ops.Branch, ops.If, ops.Each, ops.Repeat)


def one_sample(chain: tuple[PhysicalOp, ...], *, greedy: bool) -> tuple[PhysicalOp, ...]:
    """The operators of a block, each of whose `generate`s writes one sample."""
    return tuple(_one_sample(node, greedy) for node in chain)


def _one_sample(node: PhysicalOp, greedy: bool) -> PhysicalOp:
    if isinstance(node.op, ops.Generate):
        span = node.op.span
        op = replace(node.op, n=ast.Literal(1, span=span), first_tokens="drawn")
        return replace(node, op=replace(op, temperature=ast.Literal(0, span=span)) if greedy else op)
    if isinstance(node.op, _GOES_ON):
        arms = tuple(one_sample(arm, greedy=greedy) for arm in node.arms)
        return replace(node, body=one_sample(node.body, greedy=greedy), arms=arms)
    return node


async def rolled_out(
    chain: tuple[PhysicalOp, ...], row: Row, depth: int, instance: Instance, run: RunChain
) -> Row | None:
    """The finished row that a row comes to at the end, `depth` steps below the root; None where it comes to none.

    `chain` writes one sample; of several rows that it makes, as by the arms of a `branch`, the first goes on.
    """
    now, step = replace(row, path=(*row.path, -1, 0)), depth
    while not now.generated.finished:
        own = replace(instance, rounds=(*instance.rounds, step), ahead=None, steps={})
        made = await run(chain, (now,), own)
        if not made or made[0].generated.tokens == now.generated.tokens:
            return None
        now, step = made[0], step + 1
    return now
