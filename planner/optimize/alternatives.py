"""What a plan may be chosen from: other ways to run single operators, and other settings of what they share.

Rules say what may be done; for each of their decisions there is the candidate without it, since what is allowed need
not pay. The joint knobs are problems in flight, sequences to keep at work, how far samples run ahead, and how keys and
values are kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from qpdsl.planner.cost.device import Device
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.implementation import implementation
from qpdsl.planner.plan.physical import (
    Equivalence,
    GenerateStrategy,
    Strategy,
    KVType,
    PhysicalOp,
    PhysicalPlan,
    ScoreStrategy,
    VoteStrategy,
    everything,
)
from qpdsl.planner.plan.rewrite import with_inner, with_ops

IN_FLIGHT = (1, 2, 4, 8, 16, 32, 64, 128, 256)
FLOORS = (16, 32, 64, 128)
AHEAD = (0, 1, 2, 3)
KV_TYPES: tuple[KVType, ...] = ("int8", "fp8")


@dataclass(frozen=True, slots=True)
class Alternative:
    """A plan in which one `knob` stands at `value`, both in words. `epsilon`: see `KVProfile`, None for the exact."""

    knob: str
    value: str
    plan: PhysicalPlan
    epsilon: float | None = None


def of_operators(plan: PhysicalPlan, ruled: PhysicalPlan) -> Iterator[Alternative]:
    """For every decision of the rules, as `ruled` has them, the plan with it and the one without.

    Scores that are another operator's read again ask no model, so there is nothing to decide about them.
    """
    most = {node.id: node.strategy for node in everything(ruled.ops)}
    for node in everything(plan.ops):
        match node.strategy, most[node.id]:
            case GenerateStrategy() as strategy, GenerateStrategy(share=True):
                knob = f"generate {node.id}: prefixes"
                yield Alternative(knob, "shared", with_strategy(plan, {node.id: replace(strategy, share=True)}))
                alone = replace(strategy, share=False, run_ahead=0)
                yield Alternative(knob, "computed by every sample", with_strategy(plan, {node.id: alone}))
            case ScoreStrategy() as strategy, ScoreStrategy(share=True, same_as=None) as ruled_strategy:
                word = "prefixes" if isinstance(node.op, ops.Judge) else "texts"
                knob = f"{'judge' if isinstance(node.op, ops.Judge) else 'score'} {node.id}: {word}"
                yield Alternative(
                    knob, "what is new in them", with_strategy(plan, {node.id: replace(strategy, share=True)})
                )
                yield Alternative(knob, "whole", with_strategy(plan, {node.id: replace(strategy, share=False)}))
                if ruled_strategy.cache:
                    knob = f"score {node.id}: scores of steps"
                    yield Alternative(knob, "kept", with_strategy(plan, {node.id: replace(strategy, cache=True)}))
                    yield Alternative(
                        knob, "read again", with_strategy(plan, {node.id: replace(strategy, cache=False)})
                    )
            case VoteStrategy(), VoteStrategy(decided=True):
                yield from _votes(plan, ruled, node)


def _votes(plan: PhysicalPlan, ruled: PhysicalPlan, vote: PhysicalOp) -> Iterator[Alternative]:
    feeding = next(
        node.id
        for node in everything(ruled.ops)
        if isinstance(node.strategy, GenerateStrategy) and node.strategy.vote == vote.id
    )
    now = next(node.strategy for node in everything(plan.ops) if node.id == feeding)
    assert isinstance(now, GenerateStrategy)
    knob = f"vote {vote.id}"
    early: dict[str, Strategy] = {feeding: replace(now, vote=vote.id), vote.id: VoteStrategy(decided=True)}
    late: dict[str, Strategy] = {feeding: replace(now, vote=None), vote.id: VoteStrategy()}
    yield Alternative(knob, "stops when decided", with_strategy(plan, early))
    yield Alternative(knob, "waits for all samples", with_strategy(plan, late))


def in_flight(plan: PhysicalPlan) -> Iterator[Alternative]:
    """Problems at once; nothing where no rule lets several run."""
    if plan.in_flight is not None:
        for most in sorted({*IN_FLIGHT, plan.in_flight}):
            yield Alternative("problems at once", str(most), replace(plan, in_flight=most))


def floors(plan: PhysicalPlan, *more: int) -> Iterator[Alternative]:
    """Sequences below which another problem starts, `more` among them."""
    if plan.in_flight is not None:
        for floor in sorted({*FLOORS, *more, plan.floor}):
            yield Alternative("sequences to keep at work", str(floor), replace(plan, floor=floor))


def aheads(plan: PhysicalPlan, ruled: PhysicalPlan) -> Iterator[Alternative]:
    """How far samples run ahead, all of them alike, where a rule lets them."""
    allowed = {
        node.id
        for node in everything(ruled.ops)
        if isinstance(node.strategy, GenerateStrategy) and node.strategy.run_ahead > 0
    }
    strategies = {node.id: node.strategy for node in everything(plan.ops) if node.id in allowed}
    if strategies:
        for depth in AHEAD:
            changed = {
                id: replace(strategy, run_ahead=depth)
                for id, strategy in strategies.items()
                if isinstance(strategy, GenerateStrategy) and (strategy.share or not depth)
            }
            yield Alternative("steps to run ahead", str(depth), with_strategy(plan, changed))


def kv_types(plan: PhysicalPlan, ruled: PhysicalPlan, models: Collection[str], device: Device) -> Iterator[Alternative]:
    """How keys and values are kept: as the models compute them, or in a type whose error was measured for all."""
    yield Alternative("keys and values", "as computed", _keeping(plan, ruled, None))
    profiles = [device.models.get(model) for model in models]
    for kv_type in KV_TYPES:
        known = [profile.kv_types.get(kv_type) if profile is not None else None for profile in profiles]
        errors = [each.epsilon for each in known if each is not None]
        if errors and len(errors) == len(known):
            yield Alternative("keys and values", kv_type, _keeping(plan, ruled, kv_type), max(errors))


def _keeping(plan: PhysicalPlan, ruled: PhysicalPlan, kv_type: KVType | None) -> PhysicalPlan:
    before = {node.id: node.equivalence for node in everything(ruled.ops)}

    def looser(equivalence: Equivalence) -> Equivalence:
        return "epsilon" if kv_type is not None and equivalence == "exact" else equivalence

    def kept(node: PhysicalOp) -> PhysicalOp:
        calls = isinstance(node.op, ops.Generate | ops.Score | ops.Judge)
        body = tuple(kept(inner) for inner in node.body)
        arms = tuple(tuple(kept(inner) for inner in arm) for arm in node.arms)
        own = before[node.id]
        return replace(node, equivalence=looser(own) if calls else own, body=body, arms=arms)

    return replace(
        plan,
        kv_type=kv_type,
        equivalence=looser(ruled.equivalence),
        ops=tuple(kept(node) for node in plan.ops),
    )


def with_strategy(plan: PhysicalPlan, strategies: Mapping[str, Strategy]) -> PhysicalPlan:
    """The plan with operators, by their ids, to be run so; itself where they are."""
    return with_ops(plan, tuple(_with_strategy(node, strategies) for node in plan.ops))


def _with_strategy(node: PhysicalOp, strategies: Mapping[str, Strategy]) -> PhysicalOp:
    body = tuple(_with_strategy(inner, strategies) for inner in node.body)
    arms = tuple(tuple(_with_strategy(inner, strategies) for inner in arm) for arm in node.arms)
    node = with_inner(node, body, arms)
    strategy = strategies.get(node.id, node.strategy)
    return (
        node
        if strategy == node.strategy
        else replace(node, strategy=strategy, implementation=implementation(node.op, strategy))
    )
