"""Lets the small model of a filter draw on by itself until it is unsure, and gathers what the large one has to draw.

The plain form of `via filter(…)` asks for each token by itself. Here the small model draws a run of tokens in one
request, which ends before the first one that is not its to decide. Samples that wait for the large model wait together,
and it catches up on all that it has not seen in one forward (CALID, the request cache of filter decoding). Each token
is drawn by the same model with the same noise as in the plain form, so the tokens are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from qpdsl.planner.plan import ops
from qpdsl.planner.plan.decode_plan import DecodePlan
from qpdsl.planner.plan.physical import GenerateStrategy, PhysicalOp, PhysicalPlan
from qpdsl.planner.plan.rewrite import map_operators
from qpdsl.planner.plan.rule import Alternative, Rule
from qpdsl.planner.rules.decode.pick import alternatives, pick, words

NAME = "filter_in_runs"
# The large model is asked at once for so many rows, or once the first of them has waited for so long.
ROWS = 16
SECONDS = 0.1


def filter_in_runs(plan: PhysicalPlan) -> PhysicalPlan:
    """Who draws a token depends on the tokens before it alone, not on the request that it is drawn in."""

    def cached_variant(op: ops.Generate, decode: DecodePlan) -> str | None:
        return "cached" if decode.filter == "confidence" else None

    cached = pick(plan, NAME, "filter", cached_variant, remote=True)

    def batched(node: PhysicalOp) -> PhysicalOp:
        if not isinstance(node.op, ops.Generate) or not isinstance(node.strategy, GenerateStrategy):
            return node
        if node.strategy.decode.filter != "cached":
            return node
        return replace(node, strategy=replace(node.strategy, flush_rows=ROWS, flush_seconds=SECONDS))

    return map_operators(cached, batched)


def _words(node: PhysicalOp) -> Iterator[str]:
    return words(node, "filter", ("cached",))


def _alternatives(plan: PhysicalPlan, ruled: PhysicalPlan) -> Iterator[Alternative]:
    return alternatives(
        plan,
        ruled,
        "filter",
        "filter",
        lambda op, decode: ("cached", "confidence") if decode.filter == "cached" else (),
    )


RULE = Rule(
    NAME,
    "let a filter's small model draw on until it is unsure, and gather the large model's tokens in batches",
    "exact",
    "beside deferred layers, which is the same within one model",
    filter_in_runs,
    _words,
    _alternatives,
)
