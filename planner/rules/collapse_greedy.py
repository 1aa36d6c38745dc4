"""Draws samples that must be equal once: at temperature 0 every sample of a row is the same.

Rows, columns and near ties are those of the naive plan: a near tie counts for every copy of the sample. Sampled tokens
count once, since they are a cost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from qpdsl.grammar import ast
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.options import constant
from qpdsl.planner.plan.physical import GenerateStrategy, PhysicalOp, PhysicalPlan
from qpdsl.planner.plan.rewrite import decide, map_operators
from qpdsl.planner.plan.rule import Rule

NAME = "collapse_greedy"


def collapse_greedy(plan: PhysicalPlan) -> PhysicalPlan:
    """Where the temperature is no constant the runtime looks whether it is 0: that is a question of meaning."""
    return map_operators(plan, _collapsed)


def _collapsed(node: PhysicalOp) -> PhysicalOp:
    if not isinstance(node.op, ops.Generate) or not isinstance(node.strategy, GenerateStrategy):
        return node
    count, temperature = constant(node.op.n), constant(node.op.temperature)
    alone = isinstance(count, ast.Literal) and count.value == 1
    warm = isinstance(temperature, ast.Literal) and temperature.value != 0
    return node if alone or warm else decide(node, replace(node.strategy, collapse=True), NAME)


def _words(node: PhysicalOp) -> Iterator[str]:
    if isinstance(node.strategy, GenerateStrategy) and node.strategy.collapse:
        yield "drawn once"


RULE = Rule(
    NAME,
    "draw samples at temperature 0 once and copy them",
    "exact",
    "before sharing: what is drawn once has nobody to share its prompt with",
    collapse_greedy,
    _words,
)
