"""Has tokens proposed that one forward then checks, as the program's `draft` says.

A program's `draft` is a wish: the rule follows it. Where the program says nothing the choice by cost may take n-grams,
which need no other model, where earlier runs show that enough of them would have been accepted (they are counted by
`executor/runtime/generate/step_counts.py`). What is proposed is drawn with the noise of its place, so a draft changes
how fast tokens come, and none of them (drafter-invariant sampling: Daliri, Musco and Suresh, 2024).
"""

from __future__ import annotations

from collections.abc import Iterator

from qpdsl.planner.plan import ops
from qpdsl.planner.plan.decode_plan import DecodePlan
from qpdsl.planner.plan.physical import PhysicalOp, PhysicalPlan
from qpdsl.planner.plan.rule import Alternative, Rule
from qpdsl.planner.rules.decode.pick import alternatives, pick, words

NAME = "draft_tokens"
_WAYS = ("ngram", "model", "early_exit", "eagle")


def draft_tokens(plan: PhysicalPlan) -> PhysicalPlan:
    """Drafts where the program wants them."""
    return pick(plan, NAME, "draft", lambda op, decode: None if op.draft is None else op.draft.method)


def _words(node: PhysicalOp) -> Iterator[str]:
    return words(node, "draft", _WAYS)


def _own_choice(op: ops.Generate, decode: DecodePlan) -> tuple[str, ...]:
    """What the planner may choose from by itself: no program's wish is turned back.

    A draft is checked by all layers, so it would keep draws from leaving early.
    """
    return ("ngram", "none") if op.draft is None and not isinstance(op.via, ops.Amortized) else ()


def _alternatives(plan: PhysicalPlan, ruled: PhysicalPlan) -> Iterator[Alternative]:
    # A plan that no rule has touched stays as it is.
    return alternatives(plan, ruled, "drafts", "draft", _own_choice) if ruled.rules else iter(())


RULE = Rule(
    NAME,
    "propose tokens, as the program's `draft` says, and check them in one forward",
    "exact",
    "before steps that run ahead, which are drafted for as well",
    draft_tokens,
    _words,
    _alternatives,
)
