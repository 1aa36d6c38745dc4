"""The rules that expand the decoding step of a `generate`: which variant of each of its parts carries it out.

A step is a logical operator inside `generate`, and `planner/plan/decode_plan.py` has its parts and their variants. Each
rule here picks the variant of one part, and offers the others to the choice by cost. A variant that replaces a plainer
one says so itself, and `rule_of` makes the rule. Every one of them is exact: the noise of a token depends on its row
and its place alone, so neither what computes the logits, nor how many tokens a forward checks, nor which of them the
model was not asked for, changes any. Where the program is lossy by its own `via`, they are exact relative to the
plainest plan of that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from qpdsl.planner.plan import ops
from qpdsl.planner.plan.decode_plan import DRAFTS, VARIANTS, DecodePlan, Part, Variant
from qpdsl.planner.plan.physical import GenerateStrategy, PhysicalOp, PhysicalPlan
from qpdsl.planner.plan.rule import Alternative, Knob, Rule, decide, map_operators, operator_pairs, with_strategies


def rule_of(variant: Variant) -> Rule:
    """The rule that takes a variant in the place of the one that it replaces."""
    own = variant.replaces
    assert own is not None
    part, name = variant.part, variant.name

    def choose(op: ops.Generate, decode: DecodePlan) -> str | None:
        free = not (own.unless_drafted and decode.drafts)
        return name if decode.variant(part) == own.of and free else None

    def apply(plan: PhysicalPlan) -> PhysicalPlan:
        picked = _pick(plan, own.rule, part, choose, remote=own.served)
        return map_operators(picked, settled) if own.settings else picked

    def settled(node: PhysicalOp) -> PhysicalOp:
        if not isinstance(node.strategy, GenerateStrategy) or node.strategy.decode.variant(part) != name:
            return node
        return replace(node, strategy=replace(node.strategy, **own.settings))

    def words(node: PhysicalOp) -> Iterator[str]:
        return _words(node, part, (name,))

    def names(op: ops.Generate, decode: DecodePlan) -> tuple[str, ...]:
        return (name, own.of) if decode.variant(part) == name else ()

    def alternatives(plan: PhysicalPlan, ruled: PhysicalPlan) -> Iterator[Alternative]:
        return _alternatives(plan, ruled, own.choice, part, names)

    return Rule(own.rule, own.description, "exact", own.place, apply, words, alternatives)


def _draft_tokens(plan: PhysicalPlan) -> PhysicalPlan:
    """Drafts where the program wants them."""
    return _pick(plan, "draft_tokens", "draft", lambda op, decode: None if op.draft is None else op.draft.method)


def _own_choice(op: ops.Generate, decode: DecodePlan) -> tuple[str, ...]:
    """What the planner may choose from by itself: no program's wish is turned back.

    Earlier runs show whether enough of such drafts would have been accepted (they are counted by
    `executor/runtime/generate/sampling.py`). A draft is checked by all layers, so it would keep draws from leaving
    early.
    """
    if op.draft is not None or isinstance(op.via, ops.Amortized):
        return ()
    return (*(variant.name for variant in DRAFTS if variant.unasked), "none")


def _other_drafts(plan: PhysicalPlan, ruled: PhysicalPlan) -> Iterator[Alternative]:
    # A plan that no rule has touched stays as it is.
    return _alternatives(plan, ruled, "drafts", "draft", _own_choice) if ruled.rules else iter(())


# A program's `draft` is a wish, which the rule follows. What is proposed is drawn with the noise of its place, so a
# draft changes how fast tokens come, and none of them (drafter-invariant sampling: Daliri, Musco and Suresh, 2024).
DRAFT_TOKENS = Rule(
    "draft_tokens",
    "propose tokens as the program's `draft` says, and check them in one forward",
    "exact",
    "before steps that run ahead, which use drafts too",
    _draft_tokens,
    lambda node: _words(node, "draft", [variant.name for variant in DRAFTS]),
    _other_drafts,
)
# By name.
REPLACEMENTS = {rule.name: rule for variant in VARIANTS if variant.replaces is not None for rule in (rule_of(variant),)}


def _pick(
    plan: PhysicalPlan,
    rule: str,
    part: Part,
    choose: Callable[[ops.Generate, DecodePlan], str | None],
    *,
    remote: bool = False,
) -> PhysicalPlan:
    """The plan with the variant that `choose` names for each `generate`, where it names one and that applies.

    How a server decodes is its own affair: with `remote`, models on servers are picked for all the same.
    """

    def picked(node: PhysicalOp) -> PhysicalOp:
        if not isinstance(node.op, ops.Generate) or not isinstance(node.strategy, GenerateStrategy):
            return node
        if not remote and plan.remote_model(node.op.model.name) is not None:
            return node
        name = choose(node.op, node.strategy.decode)
        if name is None:
            return node
        strategy = _with_variant(node.strategy, part, name)
        return decide(node, strategy, rule) if strategy.decode.applies(node.op) else node

    return map_operators(plan, picked)


def _alternatives(
    plan: PhysicalPlan,
    ruled: PhysicalPlan,
    what: str,
    part: Part,
    names: Callable[[ops.Generate, DecodePlan], Iterable[str]],
) -> Iterator[Alternative]:
    """Each `generate` of a plan with each of these variants as that part; `names` is shown what the rules decided."""
    for node, decided in operator_pairs(plan, ruled):
        if not isinstance(node.op, ops.Generate):
            continue
        assert isinstance(node.strategy, GenerateStrategy) and isinstance(decided.strategy, GenerateStrategy)
        for name in names(node.op, decided.strategy.decode):
            strategy = _with_variant(node.strategy, part, name)
            if strategy.decode.applies(node.op):
                yield Alternative(Knob(what, "generate", node.id), name, with_strategies(plan, {node.id: strategy}))


def _words(node: PhysicalOp, part: Part, names: Iterable[str]) -> Iterator[str]:
    """How EXPLAIN calls that part, where it is one of these variants."""
    if isinstance(node.strategy, GenerateStrategy) and node.strategy.decode.variant(part) in names:
        yield node.strategy.decode.words_of(part)


def _with_variant(strategy: GenerateStrategy, part: Part, name: str) -> GenerateStrategy:
    """The strategy with this variant as that part of its decode plan."""
    return replace(strategy, decode=replace(strategy.decode, **{part: name}))
