"""What a plan may be chosen from: other ways to run single operators, and other settings of what they share.

The rules say what may be done, and offer the alternatives to their own decisions, since what is allowed need not pay.
No rule decides the type of keys and values: measurements of a type say whether it may be used.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from itertools import chain

from qpdsl.planner.plan import ops
from qpdsl.planner.plan.decode_plan import Equivalence
from qpdsl.planner.plan.physical import KV_TYPES, KVType, PhysicalOp, PhysicalPlan, everything
from qpdsl.planner.plan.rewrite import map_operators
from qpdsl.planner.plan.rule import Alternative, JointAlternatives, Knob
from qpdsl.planner.rules import RULES

JOINT: tuple[JointAlternatives, ...] = tuple(chain.from_iterable(rule.joint for rule in RULES))
_KV = Knob("keys and values")


def of_operators(plan: PhysicalPlan, ruled: PhysicalPlan, disabled: Collection[str] = ()) -> Iterator[Alternative]:
    """For every decision of the rules, as `ruled` has them, the plan with it and the one without.

    They go by operators in running order, and by the order of the rules for each. Rules that are `disabled` offer
    nothing.
    """
    order = {node.id: number for number, node in enumerate(everything(plan.ops))}
    active = (rule for rule in RULES if rule.name not in disabled)
    alternatives = chain.from_iterable(rule.alternatives(plan, ruled) for rule in active)
    yield from sorted(alternatives, key=lambda alternative: order[alternative.knob.operator])


def kv_types(
    plan: PhysicalPlan, ruled: PhysicalPlan, kept: Mapping[str, tuple[float, float | None]]
) -> Iterator[Alternative]:
    """How keys and values are kept: as the models compute them, or in a type whose error was measured for all.

    `kept` has that error by type, in logits and in draws that change (None where not known).
    """
    yield Alternative(_KV, "as computed", _keeping(plan, ruled, None))
    for kv_type in KV_TYPES:
        if kv_type in kept:
            epsilon, loss = kept[kv_type]
            changed = "" if loss is None else f", {loss:.2%} of draws change"
            measured = f"logits off by {epsilon:.2g}{changed}, by `qpdsl profile`"
            yield Alternative(_KV, kv_type, _keeping(plan, ruled, kv_type), measured)


def as_computed(plan: PhysicalPlan) -> Alternative:
    """The plan itself, where nothing is to be chosen about its keys and values."""
    return Alternative(_KV, "as computed", plan)


def _keeping(plan: PhysicalPlan, ruled: PhysicalPlan, kv_type: KVType | None) -> PhysicalPlan:
    before = {node.id: node.equivalence for node in everything(ruled.ops)}

    def looser(equivalence: Equivalence) -> Equivalence:
        return "epsilon" if kv_type is not None and equivalence == "exact" else equivalence

    def kept(node: PhysicalOp) -> PhysicalOp:
        if node.id in plan.ways:
            return node
        calls = isinstance(node.op, ops.Generate | ops.Score | ops.Judge | ops.Prob | ops.Tournament)
        own = looser(before[node.id]) if calls else before[node.id]
        return node if own == node.equivalence else replace(node, equivalence=own)

    own = plan.equivalence if plan.ways else ruled.equivalence
    return replace(map_operators(plan, kept), kv_type=kv_type, equivalence=looser(own))
