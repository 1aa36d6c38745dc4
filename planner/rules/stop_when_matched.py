"""Ends a sample as soon as the match of a regex in it is final, if nothing else is read from the sample.

These read a sample: any of its columns `text`, `step`, `finish`, `finished`, `logprob`, `tokens` and `into`, a score,
another `generate` or context that goes on from it, a Python function. The matcher itself is
`grammar/literals/early_match.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from qpdsl.grammar import ast
from qpdsl.grammar.literals.early_match import early_matcher
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import GenerateStrategy, PhysicalOp, PhysicalPlan
from qpdsl.planner.plan.reads import Columns, reads, reported
from qpdsl.planner.plan.rewrite import Chain, decide, with_inner, with_ops
from qpdsl.planner.rules.rule import Rule

NAME = "stop_when_matched"
# Columns that say something of the sample as a whole.
_OF_THE_SAMPLE = frozenset({"text", "step", "finish", "finished", "logprob", "tokens"})
# Operators that look at no text, but through columns that they name.
_LOOK_AT_COLUMNS = (ops.Where, ops.TopK, ops.Vote, ops.Split, ops.Assign, ops.Return)


def stop_when_matched(plan: PhysicalPlan) -> PhysicalPlan:
    """Looks at every `generate` outside of `repeat`, whose later rounds would go on from what is left out."""
    if reported(plan) & _OF_THE_SAMPLE:
        return plan
    return with_ops(plan, _chain(plan.ops, (), reported(plan)))


def _chain(chain: Chain, after: Chain, shown: Columns) -> Chain:
    """The operators of a chain, behind which those of `after` run; at the end the columns `shown` are looked at."""
    nodes = []
    for index, node in enumerate(chain):
        rest = (*chain[index + 1 :], *after)
        if node.arms:
            node = with_inner(node, (), tuple(_chain(arm, rest, shown) for arm in node.arms))
        pattern = _only_read(node, rest, shown)
        if pattern is not None and isinstance(node.strategy, GenerateStrategy):
            node = decide(node, replace(node.strategy, until=pattern), NAME)
        nodes.append(node)
    return tuple(nodes)


def _only_read(node: PhysicalOp, rest: Chain, shown: Columns) -> ast.Regex | None:
    """The pattern that is all that `rest` reads of what a `generate` makes, where it can be followed."""
    op = node.op
    if not isinstance(op, ops.Generate) or op.constraint is not None or op.into in shown:
        return None
    of_the_sample = _OF_THE_SAMPLE | ({op.into} if op.into is not None else set())
    pattern: ast.Regex | None = None
    for later in rest:
        if isinstance(later.op, ops.Extract) and isinstance(later.op.pattern, ast.Regex) and pattern is None:
            pattern = later.op.pattern
            # A column that the program sets itself says nothing more of the sample.
            of_the_sample = of_the_sample - {later.op.column}
        elif not isinstance(later.op, _LOOK_AT_COLUMNS) or reads(later) & of_the_sample or _parses(later.op):
            return None
    return pattern if pattern is not None and early_matcher(pattern.pattern) is not None else None


def _parses(op: ops.Operator) -> bool:
    return isinstance(op, ops.Return) and op.parse


def _words(node: PhysicalOp) -> Iterator[str]:
    if isinstance(node.strategy, GenerateStrategy) and node.strategy.until is not None:
        yield "until matched"


RULE = Rule(
    NAME,
    "end a sample when all that is read from it has matched, and nothing can change the match",
    "exact",
    "after unread columns are gone, which would have read the text",
    stop_when_matched,
    _words,
)
