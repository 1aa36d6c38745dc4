"""What a rule is: a pure function over physical plans, with all that other code needs to know about its decision.

Everything about a decision is in its rule. EXPLAIN shows the rule's words for it, and the choice by cost takes it back
where it does not pay, through the alternatives that the rule offers.

Walking and changing physical plans: every function returns the plan itself where nothing changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from qpdsl.planner.plan.decode_plan import Equivalence
from qpdsl.planner.plan.physical import GenerateStrategy, PhysicalOp, PhysicalPlan, Strategy, everything

Chain = tuple[PhysicalOp, ...]


def decide(node: PhysicalOp, strategy: Strategy, rule: str) -> PhysicalOp:
    """The operator, to be run with this strategy by the decision of a rule."""
    if strategy == node.strategy:
        return node
    return replace(node, strategy=strategy, rules=node.rules if rule in node.rules else (*node.rules, rule))


def with_strategies(plan: PhysicalPlan, strategies: Mapping[str, Strategy]) -> PhysicalPlan:
    """The plan with operators, by their ids, to be run with these strategies."""

    def changed(node: PhysicalOp) -> PhysicalOp:
        strategy = strategies.get(node.id, node.strategy)
        return node if strategy == node.strategy else replace(node, strategy=strategy)

    return map_operators(plan, changed)


def operator_pairs(plan: PhysicalPlan, other: PhysicalPlan) -> Iterator[tuple[PhysicalOp, PhysicalOp]]:
    """Each operator of a plan beside the same one of a plan that differs from it in strategies alone."""
    return zip(everything(plan.ops), everything(other.ops), strict=True)


def map_operators(plan: PhysicalPlan, change: Callable[[PhysicalOp], PhysicalOp]) -> PhysicalPlan:
    """The plan with `change` made to every operator, those inside others first."""
    return map_chains(plan, lambda chain: tuple(change(node) for node in chain))


def map_chains(plan: PhysicalPlan, change: Callable[[Chain], Chain]) -> PhysicalPlan:
    """The plan with `change` made to every chain of operators, the inner ones first."""

    return with_ops(plan, _mapped(plan.ops, change))


def map_chain(chain: Chain, change: Callable[[PhysicalOp], PhysicalOp]) -> Chain:
    """The operators of a chain and those inside them with `change` made to each, the inner ones first."""
    return _mapped(chain, lambda nodes: tuple(change(node) for node in nodes))


def _mapped(chain: Chain, change: Callable[[Chain], Chain]) -> Chain:
    inner = (
        with_inner(node, _mapped(node.body, change), tuple(_mapped(arm, change) for arm in node.arms)) for node in chain
    )
    return change(tuple(inner))


def with_ops(plan: PhysicalPlan, ops: Chain) -> PhysicalPlan:
    """The plan with these operators."""
    return plan if _same(ops, plan.ops) else replace(plan, ops=ops)


def with_inner(node: PhysicalOp, body: Chain, arms: tuple[Chain, ...]) -> PhysicalOp:
    """The operator with these inside it."""
    if _same(body, node.body) and all(map(_same, arms, node.arms)):
        return node
    return replace(node, body=body, arms=arms)


def _same(chain: Chain, other: Chain) -> bool:
    return len(chain) == len(other) and all(node is twin for node, twin in zip(chain, other, strict=True))


@dataclass(frozen=True, slots=True)
class Knob:
    """Something about a plan that can be chosen by cost: of one operator, or of the plan as a whole (a joint knob).

    `what` says it in words; it may be empty where the operator has this knob alone. `operator` is the operator's id and
    `stage` the word of its kind; both are empty for a joint knob.
    """

    what: str = ""
    stage: str = ""
    operator: str = ""

    def __str__(self) -> str:
        subject = f"{self.stage} {self.operator}".strip()
        return ": ".join(part for part in (subject, self.what) if part)


@dataclass(frozen=True, slots=True)
class Alternative:
    """A plan in which one knob stands at `value`, in words. `measured` says what is known of one that is not exact."""

    knob: Knob
    value: str
    plan: PhysicalPlan
    measured: str = ""


Alternatives = Callable[[PhysicalPlan, PhysicalPlan], Iterator[Alternative]]
JointAlternatives = Callable[[PhysicalPlan, PhysicalPlan, int], Iterator[Alternative]]


class Drawing(NamedTuple):
    """What a `generate` draws for one problem: so many tokens, in so many forwards one after another.

    Each of its `runs` waits for a sample of `longest` tokens, where one has `length` on average. `idle` is the share of
    the time when the device has room for more.
    """

    sampled: float
    steps: float
    length: float
    longest: float
    runs: float
    idle: float


@dataclass(frozen=True, slots=True)
class Effect:
    """What a rule's decision changes about what a `generate` draws, and the share that this depends on.

    Runs count `part` of `whole`, or with `whole` empty `part` beside the samples that were drawn; `words` are for both.
    The share is that of earlier runs, or `usual`. `around`: it is counted at the operator that has the `generate` in
    it. `drawing(strategy, drawing, share)` gives what is drawn with the decision, where it stands on the strategy.
    """

    part: str
    whole: str
    words: str
    usual: float
    drawing: Callable[[GenerateStrategy, Drawing, float], Drawing]
    around: bool = False

    @property
    def counts(self) -> tuple[str, ...]:
        """The names of what runs count."""
        return (self.whole, self.part) if self.whole else (self.part,)

    def share(self, count: Callable[[str], float]) -> float:
        """The share, by the counts of earlier runs."""
        whole = count(self.whole) if self.whole else count(self.part) + count("samples")
        return count(self.part) / whole if whole else self.usual


def _no_words(node: PhysicalOp) -> Iterator[str]:
    return iter(())


def _no_alternatives(plan: PhysicalPlan, ruled: PhysicalPlan) -> Iterator[Alternative]:
    return iter(())


@dataclass(frozen=True, slots=True)
class Rule:
    """`description` is one line; `place` says why the rule stands where it does in the order.

    `equivalence` is what the rule keeps: the plan after it computes the same function as the one before (`exact`), or
    one that is close to it. `apply` returns the plan itself where it has nothing to change.

    `words` says how an operator runs by the rule's decision; it says nothing where no decision stands on the operator.
    A rule that decides about operators has words for each of its decisions.

    `alternatives(plan, ruled)` gives, for each operator about which there is a decision in `ruled` (the plan as the
    rules left it), `plan` with that decision and `plan` without it. `joint` holds one function a joint knob:
    `alternatives(plan, ruled, batch)` gives `plan` with the knob at each of its values, and nothing where the rule
    decided nothing in `ruled`. `batch` is the number of sequences side by side with which the slowest model is fastest.

    `effect`: what estimates, statistics and EXPLAIN ANALYZE know of a decision about a `generate`.
    """

    name: str
    description: str
    equivalence: Equivalence
    place: str
    apply: Callable[[PhysicalPlan], PhysicalPlan]
    words: Callable[[PhysicalOp], Iterator[str]] = _no_words
    alternatives: Alternatives = _no_alternatives
    joint: tuple[JointAlternatives, ...] = ()
    effect: Effect | None = None

    def stands(self, node: PhysicalOp) -> bool:
        """Whether a decision of this rule stands on the operator."""
        return any(self.words(node))
