"""Asks a call to go on past its stop, and takes the text of the next call from that where it fits the program.

Source: speculative execution across the calls of an API (SGLang: Zheng et al., 2024, section 3.3). In
`generate stop="\\n" | say "job:" | generate stop="\\n"` the model often writes `job:` by itself. What the first call
wrote past its stop is kept; where it begins with what the program puts there, the second call is not made.

At temperature 0 the text that continues a greedy text is that of the greedy text that goes on, token by token. At
other temperatures the second call has noise of its own, so the rule leaves it alone. The server's tokens must be known:
the text that a program puts in may be cut into other tokens than the model would have written. Where they are not, only
a program that permits `recorded` results is run so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from qpdsl.planner.plan import ops
from qpdsl.planner.plan.evaluate import evaluate
from qpdsl.planner.plan.physical import GenerateStrategy, PhysicalOp, PhysicalPlan
from qpdsl.planner.plan.reads import whole_state_access
from qpdsl.planner.plan.rule import Chain, Rule, decide, map_chains

NAME = "speculative_calls"
# How many tokens a call is asked for past its stop: the text that the program puts in, and a short answer.
BEYOND = 64


def speculative_calls(plan: PhysicalPlan) -> PhysicalPlan:
    """What is taken over has the prompt of the call that is saved, so a wrong guess costs tokens and changes none."""
    return map_chains(plan, lambda chain: _followed(plan, chain))


def _followed(plan: PhysicalPlan, chain: Chain) -> Chain:
    nodes = list(chain)
    for index, node in enumerate(chain):
        after = _next_call(chain, index) if _is_greedy_call(plan, node) else None
        if after is None or not _is_greedy_call(plan, chain[after]):
            continue
        first, second = nodes[index], nodes[after]
        assert isinstance(first.op, ops.Generate) and isinstance(second.op, ops.Generate)
        assert isinstance(first.strategy, GenerateStrategy) and isinstance(second.strategy, GenerateStrategy)
        if first.op.stop is not None and first.op.model.name == second.op.model.name:
            nodes[index] = decide(first, replace(first.strategy, beyond=BEYOND), NAME)
            nodes[after] = decide(second, replace(second.strategy, continues=True), NAME)
    return chain if all(node is same for node, same in zip(nodes, chain, strict=True)) else tuple(nodes)


def _next_call(chain: Chain, index: int) -> int | None:
    """The place of the `generate` that goes on from the rows of the one at `index`, in the same context."""
    for at in range(index + 1, len(chain)):
        node = chain[at]
        if isinstance(node.op, ops.Generate):
            return at
        if node.inside or whole_state_access(node).changes & {"context", "path"}:
            return None
    return None


def _is_greedy_call(plan: PhysicalPlan, node: PhysicalOp) -> bool:
    """Whether a `generate` is drawn by a server, at temperature 0, and by nothing but the model.

    A temperature that only a run knows is looked at when it runs.
    """
    op, strategy = node.op, node.strategy
    if not isinstance(op, ops.Generate) or not isinstance(strategy, GenerateStrategy):
        return False
    model = plan.remote_model(op.model.name)
    if model is None or not model.streams or evaluate(op.temperature, plan.values()) != 0:
        return False
    # Where the server's tokens are not known they cannot be counted either.
    permitted = model.token_ids and model.greedy
    if not permitted and (plan.within.repeats != "recorded" or op.max_tokens is not None):
        return False
    free = op.constraint is None and op.via is None and op.like is None and not (op.penalties or op.holds_text)
    told = strategy.logprobs or strategy.figures
    return free and strategy.decode.whole and not told and strategy.vote is None and not strategy.speculates


def _words(node: PhysicalOp) -> Iterator[str]:
    if isinstance(node.strategy, GenerateStrategy):
        if node.strategy.continues:
            yield "taken from the call before where it fits"
        if node.strategy.beyond:
            yield f"asked for {node.strategy.beyond} more tokens"


RULE = Rule(
    NAME,
    "let a remote model write past a stop, and use that as the next call's text if it fits",
    "exact",
    "after what ends samples early or lets them run ahead: it concerns the remaining calls",
    speculative_calls,
    _words,
)
