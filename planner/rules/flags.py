"""Rules that set one flag of a strategy wherever it applies: what is alike is drawn, computed or scored once.

Each says of which operators, how EXPLAIN calls it, and what the choice by cost may choose in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from qpdsl.grammar import ast
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.options import constant
from qpdsl.planner.plan.physical import GenerateStrategy, PhysicalOp, PhysicalPlan
from qpdsl.planner.plan.rule import Alternative, Knob, Rule, decide, map_operators, operator_pairs, with_strategies


@dataclass(frozen=True, slots=True)
class FlagRule:
    """The `name` of a field of the strategies of `operators`, those aside of which `applies` is false.

    `knob` is what may be chosen about it, with the words for either choice, none where there is nothing to choose.
    There is a choice only where the rules set the flag `beside` too.
    """

    name: str
    operators: type[ops.Operator] | tuple[type[ops.Operator], ...]
    words: str
    knob: tuple[str, str, str] | None = None
    beside: str = ""
    applies: Callable[[Any], bool] = lambda op: True

    def is_of(self, node: PhysicalOp) -> bool:
        return isinstance(node.op, self.operators) and self.applies(node.op)

    def stands(self, node: PhysicalOp) -> bool:
        return isinstance(node.op, self.operators) and bool(getattr(node.strategy, self.name))

    def alternatives(self, plan: PhysicalPlan, node: PhysicalOp, ruled: PhysicalOp) -> Iterator[Alternative]:
        """Scores that are another operator's read again ask no model, so there is nothing to choose about them."""
        if self.knob is None or not self.stands(ruled) or getattr(ruled.strategy, "same_as", None) is not None:
            return
        if self.beside and not getattr(ruled.strategy, self.beside):
            return
        what, on, off = self.knob
        strategy: Any = node.strategy
        without = strategy.alone if isinstance(strategy, GenerateStrategy) else replace(strategy, **{self.name: False})
        for words, changed in ((on, replace(strategy, **{self.name: True})), (off, without)):
            knob = Knob(what, node.op.operator.lower(), node.id)
            yield Alternative(knob, words, with_strategies(plan, {node.id: changed}))


def _flag_rule(name: str, description: str, place: str, *flags: FlagRule) -> Rule:
    def flagged(node: PhysicalOp) -> PhysicalOp:
        strategy: Any = node.strategy
        changes = {flag.name: True for flag in flags if flag.is_of(node)}
        return decide(node, replace(strategy, **changes), name) if changes else node

    def apply(plan: PhysicalPlan) -> PhysicalPlan:
        return map_operators(plan, flagged)

    def words(node: PhysicalOp) -> Iterator[str]:
        yield from (flag.words for flag in flags if flag.stands(node))

    def alternatives(plan: PhysicalPlan, ruled: PhysicalPlan) -> Iterator[Alternative]:
        for node, decided in operator_pairs(plan, ruled):
            for flag in flags:
                yield from flag.alternatives(plan, node, decided)

    return Rule(name, description, "exact", place, apply, words, alternatives)


def _may_be_equal(op: ops.Generate) -> bool:
    """Whether there may be samples that must be equal. Where the temperature is no constant the runtime looks."""
    count, temperature = constant(op.n), constant(op.temperature)
    alone = isinstance(count, ast.Literal) and count.value == 1
    return not alone and not (isinstance(temperature, ast.Literal) and temperature.value != 0)


_WHAT_IS_NEW = ("what is new in them", "whole")
# At temperature 0 every sample of a row is the same. Rows, columns and near ties are those of the naive plan: a near
# tie counts for every copy of the sample. Sampled tokens count once, since they are a cost.
COLLAPSE_GREEDY = _flag_rule(
    "collapse_greedy",
    "draw samples at temperature 0 once and copy them",
    "before sharing: what is drawn once has no other sample to share its prompt with",
    FlagRule("collapse", ops.Generate, "equal drawn once", applies=_may_be_equal),
)
# KV is exact however it came about, so whatever is generated can share it.
SHARE_PREFIXES = _flag_rule(
    "share_prefixes",
    "compute a prompt once for all samples, and a prefix once for all rows, arms and rounds",
    "before what builds on a cached prefix: incremental scores, and steps that run ahead",
    FlagRule("share", ops.Generate, "prefix shared", ("prefixes", "shared", "computed by every sample")),
    FlagRule("share", (ops.Judge, ops.Prob, ops.Tournament), "prefix shared", ("prefixes", *_WHAT_IS_NEW)),
)
# The verifier's KV is kept as the generator's is; the score cache leaves only new steps to be read.
INCREMENTAL_SCORE = _flag_rule(
    "incremental_score",
    "compute only what is new in a text that a verifier has scored before",
    "after sharing prefixes, the same for generators",
    FlagRule("share", ops.StepScore, "incremental", ("texts", *_WHAT_IS_NEW)),
)
# A step's score depends on the tokens up to it and on nothing else: it is kept over rows, rounds and problems (section
# 5.3.2 of the thesis). Whole texts are scored once in every plan.
SCORE_CACHE = _flag_rule(
    "score_cache",
    "cache the score of every step by its content, and read only steps without one",
    "after incremental scores, which make the remaining steps cheap",
    FlagRule("cache", ops.StepScore, "score cache", ("scores of steps", "kept", "read again"), beside="share"),
)
