"""Lets a search's samples run past their step while the verifier scores it (section 7.1 of the thesis).

In `repeat { generate … stop=… ; score … ; keep … }` a sample that stops goes on as the future children of its row: the
same prompt and the same noise that the next round would give them, so the same tokens. What the rows that are kept can
use is kept. The strategy has the number of steps, the thesis's `n_stop_occurrences`; the plan's `floor` is how many
sequences are enough work without them.

The rounds of `repeat … gather { generate … }` begin alike, so that the next one's samples are known from the start, and
run beside the last ones of this round.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import replace

from qpdsl.grammar import ast
from qpdsl.grammar.words import MAX_AHEAD
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.options import constant
from qpdsl.planner.plan.physical import GenerateStrategy, PhysicalOp, PhysicalPlan
from qpdsl.planner.plan.reads import Parts, is_same_for_all, state_access
from qpdsl.planner.plan.rule import (
    Alternative,
    Drawing,
    Effect,
    Knob,
    Rule,
    decide,
    map_operators,
    operator_pairs,
    with_inner,
    with_strategies,
)

NAME = "speculative_expansion"
# How far the rule lets samples run ahead, and how far the choice by cost tries.
STEPS = 1
DEPTHS = tuple(range(MAX_AHEAD + 1))
# What the next round's samples of a row depend on: while it stays as it is they are known now.
_PROMPT_AND_NOISE: Parts = frozenset({"context", "path", "model", "tokens"})
_WAITS = (ops.StepScore, ops.Judge, ops.Prob, ops.Passes, ops.PythonScore)


def speculative_expansion(plan: PhysicalPlan) -> PhysicalPlan:
    """Looks at every `repeat` whose body has one `generate` with a stop string and a scorer to wait for, or gathers."""
    params = {param.name for param in plan.params}
    return map_operators(plan, lambda node: _expanded(plan, node, params))


def _expanded(plan: PhysicalPlan, node: PhysicalOp, params: AbstractSet[str]) -> PhysicalOp:
    if not isinstance(node.op, ops.Repeat):
        return node
    if node.op.gather is not None and node.body:
        first = node.body[0]
        if not isinstance(first.op, ops.Generate) or not _can_expand(first, params) or not _stands_idle(plan, first):
            return node
        return with_inner(node, (_expanding(first), *node.body[1:]), ())
    generates = [inner for inner in node.body if isinstance(inner.op, ops.Generate)]
    others = [inner for inner in node.body if not isinstance(inner.op, ops.Generate)]
    if len(generates) != 1 or any(inner.inside for inner in others):
        return node
    if any(state_access(inner.op).changes & _PROMPT_AND_NOISE for inner in others):
        return node
    (op,) = (inner.op for inner in generates)
    assert isinstance(op, ops.Generate)
    if op.stop is None or not any(isinstance(inner.op, _WAITS) for inner in others):
        return node
    if not _can_expand(generates[0], params):
        return node
    if not _stands_idle(plan, generates[0]):
        return node
    body = tuple(_expanding(inner) if inner is generates[0] else inner for inner in node.body)
    return with_inner(node, body, ())


def _can_expand(node: PhysicalOp, params: AbstractSet[str]) -> bool:
    """Copies of one sample would each run ahead; without shared prefixes a run-ahead prompt is computed for nothing.

    Where the temperature is no constant the runtime looks whether samples are copies, and lets none of those run ahead.
    Options that read columns are those of the next round, which nobody knows yet.
    """
    op, strategy = node.op, node.strategy
    assert isinstance(op, ops.Generate) and isinstance(strategy, GenerateStrategy)
    free = strategy.decode.whole and strategy.decode.constraint == "none"
    known = all(is_same_for_all(option, params) for _, option in op.options)
    copied = strategy.collapse and isinstance(constant(op.temperature), ast.Literal)
    return free and known and strategy.share and not copied


def _stands_idle(plan: PhysicalPlan, node: PhysicalOp) -> bool:
    """Whether work that may be for nothing costs nothing: a server counts every token, unless it says otherwise."""
    assert isinstance(node.op, ops.Generate)
    model = plan.remote_model(node.op.model.name)
    return model is None or model.spare_rows is not None


def _expanding(node: PhysicalOp) -> PhysicalOp:
    """As far as the program says (`ahead=`), else as the rule does."""
    assert isinstance(node.op, ops.Generate) and isinstance(node.strategy, GenerateStrategy)
    asked = constant(node.op.ahead)
    depth = asked.value if isinstance(asked, ast.Literal) and isinstance(asked.value, int) else STEPS
    return decide(node, replace(node.strategy, run_ahead=depth), NAME) if depth else node


def _words(node: PhysicalOp) -> Iterator[str]:
    if isinstance(node.op, ops.Generate) and isinstance(node.strategy, GenerateStrategy) and node.strategy.speculates:
        yield f"run-ahead {node.strategy.run_ahead}" if node.op.ahead is None else "run-ahead"


def depths(plan: PhysicalPlan, ruled: PhysicalPlan, batch: int = 1) -> Iterator[Alternative]:
    """How far samples run ahead, those of all operators alike, but for those of which the program says it.

    None runs ahead on a prefix that is not shared.
    """
    strategies = {
        node.id: node.strategy
        for node, decided in operator_pairs(plan, ruled)
        if isinstance(node.op, ops.Generate)
        and isinstance(node.strategy, GenerateStrategy)
        and node.op.ahead is None
        and RULE.stands(decided)
    }
    if strategies:
        for depth in DEPTHS:
            changed = {
                id: replace(strategy, run_ahead=depth)
                for id, strategy in strategies.items()
                if strategy.share or not depth
            }
            yield Alternative(Knob("steps to run ahead"), str(depth), with_strategies(plan, changed))


def _drawing(strategy: GenerateStrategy, drawing: Drawing, used: float) -> Drawing:
    """A sample that has ended while longer ones still run draws tokens of its children; unchosen ones are lost."""
    if not strategy.speculates or drawing.runs <= 1:
        return drawing
    saved = (drawing.longest - drawing.length) * drawing.runs * used * drawing.idle
    lost = (1 - used) * drawing.idle * strategy.run_ahead
    steps = max(drawing.steps - saved, drawing.length)
    return drawing._replace(sampled=drawing.sampled * (1 + lost), steps=steps)


RULE = Rule(
    NAME,
    "draw the next round's samples while the verifier scores, or beside the last of a gathered round",
    "exact",
    "after sharing prefixes: without it steps that ran ahead would be wasted",
    speculative_expansion,
    _words,
    joint=(depths,),
    effect=Effect("run_ahead_used", "run_ahead", "samples run ahead used", 0.5, _drawing, around=True),
)
