"""Takes the tokens that a constraint forces without asking the model, several steps' worth in one chunk.

Source: the compressed finite state machine of SGLang (Zheng et al., 2024, section 4). There the forced text is
tokenized anew, which can change what the model would have written; here the ids are those that the mask forces, one
after the other, so they are the tokens that would have been drawn.
"""

from __future__ import annotations

from collections.abc import Iterator

from qpdsl.planner.plan.physical import PhysicalOp, PhysicalPlan
from qpdsl.planner.plan.rule import Alternative, Rule
from qpdsl.planner.rules.decode.pick import alternatives, pick, words

NAME = "jump_forward"


def jump_forward(plan: PhysicalPlan) -> PhysicalPlan:
    """Where one id alone is allowed it is drawn whatever the logits are, so nothing needs to compute them."""
    return pick(plan, NAME, "constraint", lambda op, decode: "jump" if decode.constraint == "mask" else None)


def _words(node: PhysicalOp) -> Iterator[str]:
    return words(node, "constraint", ("jump",))


def _alternatives(plan: PhysicalPlan, ruled: PhysicalPlan) -> Iterator[Alternative]:
    return alternatives(
        plan,
        ruled,
        "forced tokens",
        "constraint",
        lambda op, decode: ("jump", "mask") if decode.constraint == "jump" else (),
    )


RULE = Rule(
    NAME,
    "take the tokens that a constraint forces without asking the model",
    "exact",
    "before drafts, which begin where nothing is forced",
    jump_forward,
    _words,
    _alternatives,
)
