"""A variant of one part of the decode plan of a `generate`: picked by a rule, and offered beside the plainest one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from qpdsl.planner.plan import ops
from qpdsl.planner.plan.decode_plan import DecodePlan, Part
from qpdsl.planner.plan.physical import GenerateStrategy, PhysicalOp, PhysicalPlan
from qpdsl.planner.plan.rewrite import decide, map_operators, operator_pairs, with_strategies
from qpdsl.planner.plan.rule import Alternative, Knob


def with_variant(strategy: GenerateStrategy, part: Part, name: str) -> GenerateStrategy:
    """The strategy with this variant as that part of its decode plan."""
    return replace(strategy, decode=replace(strategy.decode, **{part: name}))


def pick(
    plan: PhysicalPlan,
    rule: str,
    part: Part,
    choose: Callable[[ops.Generate, DecodePlan], str | None],
    *,
    remote: bool = False,
) -> PhysicalPlan:
    """The plan with the variant that `choose` names for each `generate`, where it names one and that applies.

    How a server decodes is its own affair: with `remote`, models on servers are picked for all the same.
    """

    def picked(node: PhysicalOp) -> PhysicalOp:
        if not isinstance(node.op, ops.Generate) or not isinstance(node.strategy, GenerateStrategy):
            return node
        if not remote and plan.remote_model(node.op.model) is not None:
            return node
        name = choose(node.op, node.strategy.decode)
        if name is None:
            return node
        strategy = with_variant(node.strategy, part, name)
        return decide(node, strategy, rule) if strategy.decode.applies(node.op) else node

    return map_operators(plan, picked)


def alternatives(
    plan: PhysicalPlan,
    ruled: PhysicalPlan,
    what: str,
    part: Part,
    names: Callable[[ops.Generate, DecodePlan], Iterable[str]],
) -> Iterator[Alternative]:
    """Each `generate` of a plan with each of these variants as that part; `names` is shown what the rules decided."""
    for node, decided in operator_pairs(plan, ruled):
        if not isinstance(node.op, ops.Generate):
            continue
        assert isinstance(node.strategy, GenerateStrategy) and isinstance(decided.strategy, GenerateStrategy)
        for name in names(node.op, decided.strategy.decode):
            strategy = with_variant(node.strategy, part, name)
            if strategy.decode.applies(node.op):
                yield Alternative(Knob(what, "generate", node.id), name, with_strategies(plan, {node.id: strategy}))


def words(node: PhysicalOp, part: Part, names: Iterable[str]) -> Iterator[str]:
    """How EXPLAIN calls that part, where it is one of these variants."""
    if isinstance(node.strategy, GenerateStrategy) and getattr(node.strategy.decode, part) in names:
        yield node.strategy.decode.words_of(part)
