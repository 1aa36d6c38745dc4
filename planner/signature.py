"""A digest of what a physical plan does, by which a plan that was met before is known again."""

from __future__ import annotations

from dataclasses import fields
from hashlib import blake2b

from qpdsl.planner.physical import PhysicalOp, PhysicalPlan


def signature(plan: PhysicalPlan) -> str:
    """Equal for plans that run the same operators in the same way; estimates and the names of rules do not count."""
    joint = (plan.in_flight, plan.floor, plan.kv_type)
    whole = (_chain(plan.ops), sorted(plan.models.items()), plan.reads, joint, plan.equivalence)
    return blake2b(repr(whole).encode("utf-8", "backslashreplace"), digest_size=16).hexdigest()


def _chain(chain: tuple[PhysicalOp, ...]) -> list[object]:
    return [
        (
            node.id,
            type(node.op).__name__,
            # What is inside stands in the physical operators, which rules may have changed.
            [(part.name, getattr(node.op, part.name)) for part in fields(node.op) if part.name not in _INSIDE],
            node.how,
            node.equivalence,
            node.inputs,
            list(node.columns.items()),
            _chain(node.body),
            [_chain(arm) for arm in node.arms],
        )
        for node in chain
    ]


_INSIDE = ("span", "body", "arms")
