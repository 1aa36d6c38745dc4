"""Computes the logits of the ids that a mask allows alone, at the steps where these are few.

The head of a small model with a large vocabulary is most of a step. Which steps are better off with the whole head is
decided at each of them, by how much of it either would read. Source: LLM-QP, section 3, the physical arm `sparse`.
"""

from __future__ import annotations

from collections.abc import Iterator

from qpdsl.planner.plan.physical import PhysicalOp, PhysicalPlan
from qpdsl.planner.plan.rule import Alternative, Rule
from qpdsl.planner.rules.decode.pick import alternatives, pick, words

NAME = "sparse_logits"


def sparse_logits(plan: PhysicalPlan) -> PhysicalPlan:
    """A row of the head is a product of its own, so those of other ids change nothing."""
    return pick(plan, NAME, "head", lambda op, decode: "sparse" if decode.masked and decode.head == "dense" else None)


def _words(node: PhysicalOp) -> Iterator[str]:
    return words(node, "head", ("sparse",))


def _alternatives(plan: PhysicalPlan, ruled: PhysicalPlan) -> Iterator[Alternative]:
    return alternatives(
        plan, ruled, "head", "head", lambda op, decode: ("sparse", "dense") if decode.head == "sparse" else ()
    )


RULE = Rule(
    NAME,
    "compute the logits of the ids that a constraint allows alone, where they are few",
    "exact",
    "after masks and drafts, which decide what rows a head gets",
    sparse_logits,
    _words,
    _alternatives,
)
