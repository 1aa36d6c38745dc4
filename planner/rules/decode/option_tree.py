"""Scores the options of a `choice` as one tree, in which what they begin with alike is computed once.

One by one they share whole pages of KV at the most. In a tree each token sees those on its own path alone, so its
log-probability is that of the option by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from qpdsl.planner.plan.physical import PhysicalOp, PhysicalPlan
from qpdsl.planner.plan.rule import Alternative, Rule
from qpdsl.planner.rules.decode.pick import alternatives, pick, words

NAME = "option_tree"


def option_tree(plan: PhysicalPlan) -> PhysicalPlan:
    """One request in the place of as many as there are options."""
    return pick(plan, NAME, "constraint", lambda op, decode: "tree" if decode.constraint == "options" else None)


def _words(node: PhysicalOp) -> Iterator[str]:
    return words(node, "constraint", ("tree",))


def _alternatives(plan: PhysicalPlan, ruled: PhysicalPlan) -> Iterator[Alternative]:
    return alternatives(
        plan,
        ruled,
        "options",
        "constraint",
        lambda op, decode: ("tree", "options") if decode.constraint == "tree" else (),
    )


RULE = Rule(
    NAME,
    "score the options of a choice as one tree",
    "exact",
    "beside forced tokens, which are the same for the other constraints",
    option_tree,
    _words,
    _alternatives,
)
