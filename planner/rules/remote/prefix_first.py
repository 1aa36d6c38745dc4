"""Lets the first sample of a fan-out go alone until it has its first token, where a server samples.

A server caches a prompt once it has computed it. Requests that come together find nothing there, and each computes the
prompt anew. The first token of one of them says that the prompt is known; the others are sent then. It is waited for
where a prompt is new: in the later rounds of a loop most of it has been sent before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from qpdsl.planner.plan import ops
from qpdsl.planner.plan.evaluate import evaluate
from qpdsl.planner.plan.physical import GenerateStrategy, PhysicalOp, PhysicalPlan
from qpdsl.planner.plan.reads import whole_state_access
from qpdsl.planner.plan.rule import Chain, Rule, decide, with_inner, with_ops

NAME = "prefix_first"
# With fewer samples less is computed twice than the wait for a first token is worth.
LEAST = 4


def prefix_first(plan: PhysicalPlan) -> PhysicalPlan:
    """When a sample is sent changes nothing of it."""
    return with_ops(plan, _chain(plan, plan.ops, fresh=False))


def _chain(plan: PhysicalPlan, chain: Chain, *, fresh: bool) -> Chain:
    """The operators of a chain. `fresh`: nothing was generated in the context of the rows that come in."""
    nodes: list[PhysicalOp] = []
    for node in chain:
        goes_round = isinstance(node.op, ops.Repeat | ops.Search)
        own = fresh and not goes_round and not isinstance(node.op, ops.Call | ops.Ask)
        body = _chain(plan, node.body, fresh=own)
        node = with_inner(node, body, tuple(_chain(plan, arm, fresh=own) for arm in node.arms))
        if fresh and isinstance(node.strategy, GenerateStrategy) and _pays(plan, node, node.strategy):
            node = decide(node, replace(node.strategy, lead=True), NAME)
        fresh = isinstance(node.op, ops.SetContext) or (fresh and "text" not in whole_state_access(node).changes)
        nodes.append(node)
    return tuple(nodes)


def _pays(plan: PhysicalPlan, node: PhysicalOp, strategy: GenerateStrategy) -> bool:
    """A server that answers in one piece says nothing before the sample has ended, which is too long to wait for."""
    op = node.op
    assert isinstance(op, ops.Generate)
    model, values = plan.remote_model(op.model.name), plan.values()
    if model is None or not model.streams or not strategy.share or not strategy.decode.whole:
        return False
    if strategy.collapse and evaluate(op.temperature, values) == 0:
        return False
    count = evaluate(op.n, values)
    return isinstance(count, (int, float)) and count >= LEAST


def _words(node: PhysicalOp) -> Iterator[str]:
    if isinstance(node.strategy, GenerateStrategy) and node.strategy.lead:
        yield "first sample leads"


RULE = Rule(
    NAME,
    "send the first sample of a prompt alone, so that the others find the prompt in the server's cache",
    "exact",
    "after sharing prefixes and drawing equal samples once: it concerns the remaining samples of one prompt",
    prefix_first,
    _words,
)
