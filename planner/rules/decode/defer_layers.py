"""Leaves the layers behind an early exit out for tokens that stand there, and makes up for them when they are wanted.

The plain form of `via amortized(…)` runs every layer for every token. Here a token that stands at the exit has the
later layers' keys and values computed only when a draw of the same sample goes on to the last layer, with all others
that it has to attend to in one forward (LLM-QP, section 3, the physical arm `amortized`). CALM copies the state of the
exit in their place (Schuster et al., 2022), which changes what later draws see. Here a draw that goes on sees what it
sees in the plain form, so the tokens are the same. A model whose layers cannot run in part is run in the plain form.
"""

from __future__ import annotations

from collections.abc import Iterator

from qpdsl.planner.plan import ops
from qpdsl.planner.plan.decode_plan import DecodePlan
from qpdsl.planner.plan.physical import PhysicalOp, PhysicalPlan
from qpdsl.planner.plan.rule import Alternative, Rule
from qpdsl.planner.rules.decode.pick import alternatives, pick, words

NAME = "defer_layers"


def defer_layers(plan: PhysicalPlan) -> PhysicalPlan:
    """Nobody attends to the later layers of a token before a draw goes on to them. Drafts are checked by all layers."""
    return pick(plan, NAME, "head", _deferred)


def _deferred(op: ops.Generate, decode: DecodePlan) -> str | None:
    return "deferred" if decode.head == "early_exit" and not decode.drafts else None


def _words(node: PhysicalOp) -> Iterator[str]:
    return words(node, "head", ("deferred",))


def _alternatives(plan: PhysicalPlan, ruled: PhysicalPlan) -> Iterator[Alternative]:
    return alternatives(
        plan,
        ruled,
        "later layers",
        "head",
        lambda op, decode: ("deferred", "early_exit") if decode.head == "deferred" else (),
    )


RULE = Rule(
    NAME,
    "run the layers behind an early exit only where a draw goes on to them, for all tokens that lack them at once",
    "exact",
    "after drafts, which all layers check",
    defer_layers,
    _words,
    _alternatives,
)
