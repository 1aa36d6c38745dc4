"""Leaves out the log-probabilities of generated text that nobody reads, and what else is told of draws.

A log-probability takes the logits of all ids. Without it a head may leave out the ids that cannot win, which a copy of
its weights in eight bits tells (`executor/kernels/llvm/head_screen.py`), and a filter's large model need not read what
the small one wrote. A contrast takes all logits in any case.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import GenerateStrategy, PhysicalOp, PhysicalPlan
from qpdsl.planner.plan.reads import reads_figures, reads_logprobs
from qpdsl.planner.plan.rule import Rule, decide, map_operators

NAME = "unread_logprobs"


def unread_logprobs(plan: PhysicalPlan) -> PhysicalPlan:
    """A token is the best of the perturbed logits, whatever these sum up to."""
    logprobs, figures = reads_logprobs(plan), reads_figures(plan.ops)

    def unread(node: PhysicalOp) -> PhysicalOp:
        if not isinstance(node.strategy, GenerateStrategy):
            return node
        contrasts = isinstance(node.op, ops.Generate) and isinstance(node.op.via, ops.Contrast)
        told = replace(
            node.strategy,
            logprobs=node.strategy.logprobs and (logprobs or contrasts),
            figures=node.strategy.figures and figures,
        )
        return decide(node, told, NAME)

    return map_operators(plan, unread)


def _words(node: PhysicalOp) -> Iterator[str]:
    if isinstance(node.strategy, GenerateStrategy):
        if not node.strategy.logprobs:
            yield "no log-probabilities"
        if node.strategy.figures:
            yield "distributions told"


RULE = Rule(
    NAME,
    "return no unread log-probabilities, so that a head may skip ids that cannot win",
    "exact",
    "after unread columns are dropped",
    unread_logprobs,
    _words,
)
