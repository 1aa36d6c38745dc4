"""One plan of the plans of several ways: the arms of a `strategy`, with the policy that says which of them is tried."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from qpdsl.planner.budget.budget_policy import BudgetPolicy, Way
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.decode_plan import Equivalence
from qpdsl.planner.plan.logical import LogicalProgram
from qpdsl.planner.plan.physical import (
    BudgetStrategy,
    GenerateStrategy,
    PhysicalOp,
    PhysicalPlan,
    ScoreStrategy,
    Strategy,
)
from qpdsl.planner.plan.rewrite import Chain, map_chain

_V = TypeVar("_V")
# The operator that all others are inside of.
_ID = "0"
_LOOSEST: tuple[Equivalence, ...] = ("lossy", "epsilon", "exact")


def reached_ways(policy: BudgetPolicy) -> tuple[Way, ...]:
    """The ways that a policy can lead to, in its order."""
    reached, pending = set[int](), [policy.first]
    while pending:
        number = pending.pop()
        reached.add(number)
        turn = policy.turns.get(number)
        pending += [] if turn is None else [after for after in turn.next if after is not None]
    return tuple(policy.ways[number] for number in sorted(reached))


def reads_support(policy: BudgetPolicy, way: Way) -> bool:
    """Whether what follows a way depends on how sure it was of its answer."""
    turn = policy.turns.get(policy.ways.index(way))
    return turn is not None and bool(turn.cuts)


def strategy_plan(
    program: LogicalProgram, plans: Sequence[tuple[Way, PhysicalPlan]], policy: BudgetPolicy
) -> PhysicalPlan:
    """The plan that tries a problem by some of the ways, each by its own plan, as the policy says.

    Each chain is that of its own plan, but for the ids of its operators, which begin with the number of the way.
    """
    ways, own = tuple(way for way, _ in plans), [plan for _, plan in plans]
    first = own[0]
    loosest = next(one for one in _LOOSEST if any(plan.equivalence == one for plan in own))
    columns = {name: type_ for plan in own for name, type_ in plan.ops[-1].columns.items()}
    op = ops.Strategy(ways, tuple(plan.score_column for plan in own), stage=0, span=first.ops[0].op.span)
    arms = tuple(_prefixed(plan.ops, f"{_ID}.{number}.") for number, plan in enumerate(own))
    root = PhysicalOp(_ID, op, loosest, 1.0, columns, arms=arms, strategy=BudgetStrategy(policy))
    loose = next((plan.within for plan in own if plan.within.level == "lossy"), first.within)
    return replace(
        first,
        name=program.name,
        source_name=program.source_name,
        models=_joined(plan.models for plan in own),
        ops=(root,),
        returns=program.returns,
        score_column=program.score_column,
        equivalence=loosest,
        within=loose,
        in_flight=max((plan.in_flight for plan in own if plan.in_flight is not None), default=None),
        floor=max(plan.floor for plan in own),
        rules=tuple(dict.fromkeys(rule for plan in own for rule in plan.rules)),
        chosen=any(plan.chosen for plan in own),
        support=any(plan.support for plan in own),
        kv_type=None,
        ways={f"{_ID}.{number}.{id}": words for number, plan in enumerate(own) for id, words in plan.ways.items()},
        sparse_shares=_joined(plan.sparse_shares for plan in own),
        remote=_joined(plan.remote for plan in own),
    )


def _joined(maps: Iterable[Mapping[str, _V]]) -> dict[str, _V]:
    """All entries, in their order; of equal keys the first one's."""
    joined: dict[str, _V] = {}
    for one in maps:
        joined.update((key, value) for key, value in one.items() if key not in joined)
    return joined


def _prefixed(chain: Chain, prefix: str) -> Chain:
    def renamed(node: PhysicalOp) -> PhysicalOp:
        return replace(node, id=f"{prefix}{node.id}", strategy=_referring(node.strategy, prefix))

    return map_chain(chain, renamed)


def _referring(strategy: Strategy | None, prefix: str) -> Strategy | None:
    """A strategy that names operators by their new ids."""
    match strategy:
        case GenerateStrategy(vote=str(vote)):
            return replace(strategy, vote=f"{prefix}{vote}")
        case ScoreStrategy(same_as=str(same)):
            return replace(strategy, same_as=f"{prefix}{same}")
    return strategy
