"""The ways of a program under a budget: a problem is tried by one after another until its policy ends it.

What follows a way depends on how sure it was of its answer, so on the samples of this problem alone. A way runs as if
it were the whole program. A sample that an earlier way drew is not drawn again, where the engine would draw the same,
and its tokens are counted once.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, replace

from qpdsl.executor.runtime.instance.candidates import Candidates, JsonValue
from qpdsl.executor.runtime.instance.instance import Instance, RowError
from qpdsl.executor.runtime.instance.operator_events import emit_tried
from qpdsl.executor.runtime.last_choice import FinalCandidate
from qpdsl.executor.sample_memory.sample_memory import SampleMemory
from qpdsl.executor.sample_memory.sharing_engine import SharingEngine
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import BudgetStrategy, PhysicalOp
from qpdsl.planner.plan.rule import Chain
from qpdsl.planner.values.library import TooLarge


@dataclass(frozen=True, slots=True)
class ProgramEnd:
    """What the operators of a program came to: its last rows, its value, or why it has none, and its score.

    `support` is how sure it was of the value. `tried` are the names of the ways by which the problem was tried, in
    their order, none where the program has no ways.
    """

    rows: Candidates
    value: JsonValue = None
    failure: RowError | TooLarge | OverflowError | None = None
    score: float | None = None
    support: float | None = None
    candidates: tuple[FinalCandidate, ...] | None = None
    tried: tuple[str, ...] = ()


RunWay = Callable[[Chain, str | None, Instance], Awaitable[ProgramEnd]]


async def try_ways(node: PhysicalOp, instance: Instance, run: RunWay) -> ProgramEnd:
    """Tries a problem by the first way of the policy, and by others, until nothing follows; gives the end of the last.

    A way that gives no value counts as unsure of it. `run` runs the operators of a way, whose score is in a column.
    """
    op, strategy = node.op, node.strategy
    assert isinstance(op, ops.BudgetedArms) and isinstance(strategy, BudgetStrategy)
    policy, memory = strategy.policy, SampleMemory(charges_again=False)
    services = replace(instance.services, engine=SharingEngine(instance.services.engine, memory))
    names: list[str] = []
    drawn: set[Hashable] = set()
    at = 0 if policy is None else policy.first
    while True:
        way = op.ways[at] if policy is None else policy.ways[at]
        number = op.ways.index(way)
        names.append(way.name)
        instance.usage.counts[f"way_{number}"] += 1
        own = replace(
            instance,
            services=services,
            aside=(*instance.aside, f"way {len(names)}: {way.name}"),
            emptied=[],
            supports={},
            steps={},
            drawn=set(),
            drawn_before=frozenset(drawn),
        )
        start, usage = time.monotonic(), instance.usage
        before = usage.prompt_tokens, usage.sampled_tokens
        end = await run(node.arms[number], op.scores[number], own)
        drawn |= own.drawn
        turn = None if policy is None else policy.turns.get(at)
        following = None if turn is None else turn.after(end.support)
        emit_tried(
            way.name,
            end.support,
            None if policy is None or following is None else policy.ways[following].name,
            (usage.prompt_tokens - before[0], usage.sampled_tokens - before[1]),
            time.monotonic() - start,
            instance,
        )
        if following is None:
            break
        at = following
    return replace(end, tried=tuple(names))
